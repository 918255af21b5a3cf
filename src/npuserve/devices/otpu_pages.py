"""Pages of one slot's context in card memory: where they stand, out and in.

page      per kind of layer and part, all layers of it: keys, key scales, value scales, values
keys      [layers][kv heads][64 positions][head] int8, and their scales likewise
values    [layers][kv heads * value rows][64 positions] int8: 64 columns of V^T, which are whole beats
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from npuserve.core import PAGE_TOKENS
from npuserve.drivers.base import Link
from npuserve.drivers.blocks import read_block, write_block
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import WORD

# Joining pieces of this size costs less than moving each by itself.
_SHORT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the parts of a kind's layers: from `offset` in the slot on, `num_rows` rows `stride` bytes apart in each
    of `num_layers` layers `layer_stride` apart, `page_bytes` of each row for a page."""

    offset: int
    num_layers: int
    layer_stride: int
    num_rows: int
    stride: int
    page_bytes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.num_layers, self.num_rows, self.page_bytes

    @property
    def strides(self) -> tuple[int, int]:
        return self.layer_stride, self.stride


class OtpuPages:
    """Moves pages between a card's slots and arrays of [page_bytes]."""

    def __init__(self, link: Link, dram: DramLayout) -> None:
        self._link, self._dram = link, dram
        self._parts = tuple(part for kind in range(len(dram.kv_kinds)) for part in _parts(dram, kind))
        self._ends = np.cumsum([0, *(math.prod(part.shape) for part in self._parts)]).tolist()

    @property
    def page_bytes(self) -> int:
        end: int = self._ends[-1]
        return end

    def save(self, slot: int, page: int) -> NDArray[np.uint8]:
        """See `Device.save`; slot and page exist."""
        data = np.empty(self.page_bytes, np.uint8)
        for part, (begin, end) in zip(self._parts, pairwise(self._ends), strict=True):
            block = read_block(self._link, self._address(part, slot, page), part.shape, part.strides)
            data[begin:end] = block.reshape(-1)
        return data

    def restore(self, slot: int, page: int, data: Sequence[NDArray[np.uint8]]) -> None:
        """See `Device.restore`; slot and pages exist."""
        for part, (begin, end) in zip(self._parts, pairwise(self._ends), strict=True):
            blocks = [saved[begin:end].reshape(part.shape) for saved in data]
            if part.page_bytes <= _SHORT_BYTES:
                # Consecutive pages of a row stand side by side in memory: short ones are written as one.
                blocks = [np.concatenate(blocks, axis=2)]
            for index, block in enumerate(blocks):
                write_block(self._link, self._address(part, slot, page + index), part.strides, block)

    def _address(self, part: _Part, slot: int, page: int) -> int:
        return self._dram.slots + slot * self._dram.slot_stride + part.offset + page * part.page_bytes


def _parts(dram: DramLayout, kind: int) -> Iterator[_Part]:
    """The four parts of all layers of a kind."""
    kv, geometry = dram.kv_kinds[kind], dram.geometry.kinds[kind]
    layers, heads = dram.geometry.layers_of(kind), geometry.facts.num_kv_heads
    if not layers:
        return
    for offset, num_rows, stride, page_bytes in (
        (0, heads, kv.k_head, PAGE_TOKENS * kv.k_row),
        (kv.k_scales, heads, kv.k_scale_head, PAGE_TOKENS * kv.k_scale_row),
        (kv.v_scales, heads, kv.v_scale_head, PAGE_TOKENS * WORD),
        (kv.values, heads * geometry.value_rows, geometry.v_row_stride_bytes, PAGE_TOKENS),
    ):
        start = dram.kv_starts[layers[0]] + offset
        yield _Part(start, len(layers), kv.stride, num_rows, stride, page_bytes)

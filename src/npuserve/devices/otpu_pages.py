"""Pages of one slot's context in card memory: where they stand, out and in.

page      per kind of layer and part, all layers of it: keys, key scales, value scales, values
keys      [layers][kv heads][64 positions][head] int8, and their scales likewise
values    [layers][kv heads * value rows][64 positions] int8: 64 columns of V^T, which are whole beats
state     of recurrent families, behind the others: per kind [layers][state] fp32, then a beat with the position that
          comes next, uint64; of several pages that are restored the last one's counts
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npuserve.core import PAGE_TOKENS
from npuserve.drivers.base import Link
from npuserve.drivers.blocks import read_block, write_block, write_blocks
from npuserve.program.dram import BEAT, DramLayout
from npuserve.program.geometry import WORD


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


class _Placed(NamedTuple):
    """A part with its bytes in a page."""

    part: _Part
    begin: int
    end: int


def _placed(begin: int, parts: Iterable[_Part]) -> tuple[_Placed, ...]:
    """Parts one behind the other from byte `begin` on."""
    placed = []
    for part in parts:
        placed.append(_Placed(part, begin, begin + math.prod(part.shape)))
        begin = placed[-1].end
    return tuple(placed)


class OtpuPages:
    """Moves pages between a card's slots and arrays of [page_bytes]."""

    def __init__(self, link: Link, dram: DramLayout) -> None:
        self._link, self._dram = link, dram
        kinds = range(len(dram.kv_kinds))
        self._parts = _placed(0, [part for kind in kinds for part in _parts(dram, kind)])
        end = self._parts[-1].end if self._parts else 0
        self._states = _placed(end, [part for kind in kinds for part in _states(dram, kind)])
        self.page_bytes = self._states[-1].end + BEAT if self._states else end

    def save(self, slot: int, page: int, next_position: int = 0) -> NDArray[np.uint8]:
        """See `Device.save`; slot and page exist. A state stands before `next_position`."""
        data = np.zeros(self.page_bytes, np.uint8)
        for part, begin, end in self._parts:
            data[begin:end] = self._read(part, slot, page)
        for part, begin, end in self._states:
            data[begin:end] = self._read(part, slot, 0)
        if self._states:
            data[-BEAT:][:8] = np.frombuffer(next_position.to_bytes(8, "little"), np.uint8)
        return data

    def _read(self, part: _Part, slot: int, page: int) -> NDArray[np.uint8]:
        return read_block(self._link, self._address(part, slot, page), part.shape, part.strides).reshape(-1)

    def restore(self, slot: int, page: int, data: Sequence[NDArray[np.uint8]]) -> int:
        """See `Device.restore`; slot and pages exist. Returns the position that a restored state expects, else 0."""
        for part, begin, end in self._parts:
            blocks = [saved[begin:end].reshape(part.shape) for saved in data]
            write_blocks(self._link, self._address(part, slot, page), part.strides, blocks)
        if not self._states:
            return 0
        last = np.ascontiguousarray(data[-1])
        for part, begin, end in self._states:
            write_block(self._link, self._address(part, slot, 0), part.strides, last[begin:end].reshape(part.shape))
        return int.from_bytes(last[-BEAT:][:8].tobytes(), "little")

    def _address(self, part: _Part, slot: int, page: int) -> int:
        return self._dram.slots + slot * self._dram.slot_stride + part.offset + page * part.page_bytes


def _parts(dram: DramLayout, kind: int) -> Iterator[_Part]:
    """The four parts of all layers of a kind."""
    kv, geometry = dram.kv_kinds[kind], dram.geometry.kinds[kind]
    layers, heads = dram.geometry.layers_of(kind), geometry.num_own_kv_heads
    if not layers or not heads:
        return
    for offset, num_rows, stride, page_bytes in (
        (0, heads, kv.k_head, PAGE_TOKENS * kv.k_row),
        (kv.k_scales, heads, kv.k_scale_head, PAGE_TOKENS * kv.k_scale_row),
        (kv.v_scales, heads, kv.v_scale_head, PAGE_TOKENS * WORD),
        (kv.values, heads * geometry.value_rows, geometry.v_row_stride_bytes, PAGE_TOKENS),
    ):
        start = dram.kv_starts[layers[0]] + offset
        yield _Part(start, len(layers), kv.stride, num_rows, stride, page_bytes)


def _states(dram: DramLayout, kind: int) -> Iterator[_Part]:
    """The states of all layers of a kind, which belong to no page."""
    kv, layers = dram.kv_kinds[kind], dram.geometry.layers_of(kind)
    if layers and kv.state_bytes:
        yield _Part(dram.kv_starts[layers[0]] + kv.state, len(layers), kv.stride, 1, kv.state_bytes, kv.state_bytes)

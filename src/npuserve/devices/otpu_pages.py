"""Pages of one slot's context in card memory: where they stand, out and in.

page      per part, all layers of it: keys, key scales, value scales, values
keys      [layers][kv heads][64 positions][head] int8, and their scales likewise
values    [layers][kv heads * value rows][64 positions] int8: 64 columns of V^T, which are whole beats
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from npuserve.core import PAGE_TOKENS
from npuserve.drivers.base import Link
from npuserve.drivers.blocks import read_block, write_block
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import WORD


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the four parts of a layer: `num_rows` rows `stride` bytes apart, `page_bytes` of each for a page."""

    offset: int
    num_rows: int
    stride: int
    page_bytes: int


class OtpuPages:
    """Moves pages between a card's slots and arrays of [page_bytes]."""

    def __init__(self, link: Link, dram: DramLayout) -> None:
        kv, geometry = dram.kv, dram.geometry
        self._link, self._dram = link, dram
        self._num_layers, heads = geometry.facts.num_layers, geometry.facts.num_kv_heads
        self._parts = (
            _Part(0, heads, kv.k_head, PAGE_TOKENS * kv.k_row),
            _Part(kv.k_scales, heads, kv.k_scale_head, PAGE_TOKENS * kv.k_scale_row),
            _Part(kv.v_scales, heads, kv.v_scale_head, PAGE_TOKENS * WORD),
            _Part(kv.values, heads * geometry.value_rows, geometry.v_row_stride_bytes, PAGE_TOKENS),
        )
        sizes = [self._num_layers * part.num_rows * part.page_bytes for part in self._parts]
        self._ends = np.cumsum([0, *sizes]).tolist()

    @property
    def page_bytes(self) -> int:
        end: int = self._ends[-1]
        return end

    def save(self, slot: int, page: int) -> NDArray[np.uint8]:
        """See `Device.save`; slot and page exist."""
        data = np.empty(self.page_bytes, np.uint8)
        for part, (begin, end) in zip(self._parts, pairwise(self._ends), strict=True):
            shape = (self._num_layers, part.num_rows, part.page_bytes)
            block = read_block(self._link, self._address(part, slot, page), shape, (self._dram.kv.stride, part.stride))
            data[begin:end] = block.reshape(-1)
        return data

    def restore(self, slot: int, page: int, data: NDArray[np.uint8]) -> None:
        """See `Device.restore`; slot and pages exist."""
        num_pages = len(data)
        for part, (begin, end) in zip(self._parts, pairwise(self._ends), strict=True):
            # Consecutive pages of a row stand side by side in memory: one piece of each row, whatever their number.
            pages = data[:, begin:end].reshape(num_pages, self._num_layers, part.num_rows, part.page_bytes)
            rows = np.ascontiguousarray(pages.transpose(1, 2, 0, 3))
            block = rows.reshape(self._num_layers, part.num_rows, num_pages * part.page_bytes)
            write_block(self._link, self._address(part, slot, page), (self._dram.kv.stride, part.stride), block)

    def _address(self, part: _Part, slot: int, page: int) -> int:
        return self._dram.slots + slot * self._dram.slot_stride + part.offset + page * part.page_bytes

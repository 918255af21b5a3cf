"""Rows times heads as few vector instructions: per head over the rows, or per row over the heads."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Sweep(NamedTuple):
    """One instruction's share: `length` vectors from (row, head) on, along rows or along heads."""

    row: int
    head: int
    length: int
    along_rows: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Vectors addressed by row and head; a stride of 0 repeats. TMEM words."""

    base: int
    row_stride: int
    head_stride: int

    def start(self, sweep: Sweep) -> int:
        return self.base + sweep.row * self.row_stride + sweep.head * self.head_stride

    def stride(self, sweep: Sweep) -> int:
        return self.row_stride if sweep.along_rows else self.head_stride

    def shifted(self, words: int) -> "Grid":
        return Grid(self.base + words, self.row_stride, self.head_stride)


def sweeps(num_rows: int, num_heads: int) -> Iterator[Sweep]:
    """Cover the grid with as few sweeps as there are rows or heads, whichever are fewer."""
    if num_rows >= num_heads:
        for head in range(num_heads):
            yield Sweep(0, head, num_rows, along_rows=True)
    else:
        for row in range(num_rows):
            yield Sweep(row, 0, num_heads, along_rows=False)

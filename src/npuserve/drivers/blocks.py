"""Strided parts of card memory over any Link, in few transfers of whole beats."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from npuserve.drivers.base import Link

# A DMA call costs about 15 microseconds, in which a card moves this many bytes.
_CALL_BYTES = 16 << 10
# Joining pieces of this size costs less than moving each by itself.
_SHORT_BYTES = 1024


@runtime_checkable
class BlockLink(Protocol):
    """A Link whose memory is in reach of the processor, so that strides cost it nothing."""

    def read_block(self, address: int, shape: tuple[int, int, int], strides: tuple[int, int]) -> NDArray[np.uint8]: ...

    def write_block(self, address: int, strides: tuple[int, int], data: NDArray[np.uint8]) -> None: ...


def read_block(link: Link, address: int, shape: tuple[int, int, int], strides: tuple[int, int]) -> NDArray[np.uint8]:
    """A copy, uint8 `shape`, whose last axis is contiguous in memory and whose others are `strides` bytes apart."""
    if isinstance(link, BlockLink):
        return link.read_block(address, shape, strides)
    num_groups, num_rows, row_bytes = shape
    block = np.empty(shape, np.uint8)
    for group in range(num_groups):
        start = address + group * strides[0]
        if _one_transfer_is_cheaper(num_rows, row_bytes, strides[1], num_transfers=1):
            block[group] = _rows(link.read_dram(start, _span(num_rows, row_bytes, strides[1])), shape[1:], strides[1])
        else:
            for row in range(num_rows):
                block[group, row] = link.read_dram(start + row * strides[1], row_bytes)
    return block


def write_block(link: Link, address: int, strides: tuple[int, int], data: NDArray[np.uint8]) -> None:
    """Write contiguous `data` [groups, rows, bytes], laid out in memory as `read_block` reads it.

    Rows that lie close together are read with what is between them and written back as one: nobody else may write
    there meanwhile.
    """
    if isinstance(link, BlockLink):
        link.write_block(address, strides, data)
        return
    num_groups, num_rows, row_bytes = data.shape
    for group in range(num_groups):
        start = address + group * strides[0]
        if _one_transfer_is_cheaper(num_rows, row_bytes, strides[1], num_transfers=2):
            span = link.read_dram(start, _span(num_rows, row_bytes, strides[1])).copy()
            _rows(span, (num_rows, row_bytes), strides[1])[:] = data[group]
            link.write_dram(start, span)
        else:
            for row in range(num_rows):
                link.write_dram(start + row * strides[1], data[group, row])


def write_blocks(link: Link, address: int, strides: tuple[int, int], blocks: Sequence[NDArray[np.uint8]]) -> None:
    """Write several of the blocks that `write_block` takes, of one shape, each row beside that of the block before."""
    if not isinstance(link, BlockLink) and blocks[0].shape[-1] <= _SHORT_BYTES:
        blocks = [np.concatenate(blocks, axis=2)]
    for index, block in enumerate(blocks):
        write_block(link, address + index * block.shape[-1], strides, block)


def _one_transfer_is_cheaper(num_rows: int, row_bytes: int, stride: int, *, num_transfers: int) -> bool:
    whole = num_transfers * (_CALL_BYTES + _span(num_rows, row_bytes, stride))
    return whole < num_rows * (_CALL_BYTES + row_bytes)


def _span(num_rows: int, row_bytes: int, stride: int) -> int:
    return (num_rows - 1) * stride + row_bytes


def _rows(span: NDArray[np.uint8], shape: tuple[int, ...], stride: int) -> NDArray[np.uint8]:
    return np.lib.stride_tricks.as_strided(span, shape, (stride, 1))

"""One safetensors file: a JSON table of tensors in front of their bytes.

Layout (the format document of the safetensors project): u64 little-endian length N | N bytes of JSON, an object from
name to {dtype, shape, data_offsets [begin, end]} with an optional __metadata__ | data, which the tensors tile exactly.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.mapped_file import MappedFile
from npuserve.errors import CheckpointError, UnsupportedModelError

_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 8
_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_ITEM_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`offset` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class SafetensorsFile:
    """A mapped file; raises CheckpointError unless its table is sound and its tensors tile the data exactly."""

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        try:
            self.header_bytes, self.tensors = self._read_table()
        except BaseException:
            self._file.close()
            raise

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows start..stop-1 of the outer dimension as fresh float32; F32, F16 and BF16 are read."""
        stored = self.tensors[name]
        data = self.row_bytes(name, start, stop).ravel()
        shape = (stop - start, *stored.shape[1:]) if stored.shape else ()
        match stored.dtype:
            case "F32":
                return data.view("<f4").reshape(shape).copy()
            case "F16":
                return data.view("<f2").astype(np.float32).reshape(shape)
            case "BF16":
                return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        raise UnsupportedModelError(
            f"{self._file.path}: tensor {name!r} is stored as {stored.dtype}; F32, F16 and BF16 are read,"
            " use a checkpoint in one of these"
        )

    def row_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """The same rows as they are stored, [rows, bytes of one], mapped."""
        stored = self.tensors[name]
        size = stored.size_bytes // max(stored.shape[0], 1) if stored.shape else stored.size_bytes
        data = np.frombuffer(self._file.view(stored.offset + start * size, (stop - start) * size), np.uint8)
        return data.reshape(stop - start, size)

    def identity(self) -> bytes:
        """What `Checkpoint.fingerprint` is made of."""
        return self.header_bytes + f"{self._file.size_bytes} {self._file.mtime_ns}".encode() + self._file.samples()

    def close(self) -> None:
        self._file.close()

    def _read_table(self) -> tuple[bytes, dict[str, StoredTensor]]:
        num_bytes = int.from_bytes(self._file.read(0, 8), "little")
        if num_bytes > _MAX_HEADER_BYTES:
            raise self._error(f"a header of {num_bytes} bytes is longer than {_MAX_HEADER_BYTES}")
        header = self._file.read(8, num_bytes)
        try:
            raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
            raw.pop("__metadata__", None)
            entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(f"the header is not a table of tensors ({error})") from error
        tensors = {name: self._place(name, entry, 8 + num_bytes) for name, entry in entries.items()}
        self._check_tiling(tensors, 8 + num_bytes)
        return header, tensors

    def _place(self, name: str, entry: _Entry, data_start: int) -> StoredTensor:
        if entry.dtype not in _ITEM_BYTES:
            raise UnsupportedModelError(
                f"{self._file.path}: tensor {name!r} has dtype {entry.dtype!r}, which is not known"
            )
        if len(entry.shape) > _MAX_DIMENSIONS or any(size < 0 for size in entry.shape):
            raise self._error(f"tensor {name!r} has the impossible shape {entry.shape}")
        begin, end = entry.data_offsets
        if begin < 0 or end - begin != prod(entry.shape) * _ITEM_BYTES[entry.dtype]:
            raise self._error(f"tensor {name!r} of shape {entry.shape} does not fill bytes {begin} to {end}")
        return StoredTensor(entry.dtype, tuple(entry.shape), data_start + begin, end - begin)

    def _check_tiling(self, tensors: dict[str, StoredTensor], data_start: int) -> None:
        position = data_start
        for name, stored in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size_bytes)):
            if stored.offset != position:
                raise self._error(
                    f"tensor {name!r} is at byte {stored.offset}, where {position} was due (overlap or gap)"
                )
            position += stored.size_bytes
        if position != self._file.size_bytes:
            raise self._error(f"the tensors end at byte {position}")

    def _error(self, what: str) -> CheckpointError:
        path, size_bytes = self._file.path, self._file.size_bytes
        return CheckpointError(f"{path}: {what} ({size_bytes} bytes in the file); it is damaged, fetch it again")

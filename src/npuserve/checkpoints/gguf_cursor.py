"""Reading the scalar values of a GGUF file in order."""

import struct
from typing import Any

import numpy as np

from npuserve.checkpoints.mapped_file import MappedFile
from npuserve.errors import CheckpointError

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


class GgufCursor:
    """A position in the file that only moves over bytes that are there."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.offset = 0

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file.path}: {what} ({self.file.size_bytes} bytes in the file); it is damaged, fetch it again"
        )

    def take(self, size_bytes: int) -> bytes:
        data = self.file.read(self.offset, size_bytes)
        self.offset += size_bytes
        return data

    def integer(self, size_bytes: int) -> int:
        return int.from_bytes(self.take(size_bytes), "little")

    def count(self, item_bytes: int, what: str) -> int:
        """A u64 number of items of at least `item_bytes`, refused when the rest of the file cannot hold them."""
        count = self.integer(8)
        if count * item_bytes > self.file.size_bytes - self.offset:
            raise self.error(f"{count} {what} do not fit into the file")
        return count

    def string(self, what: str, max_bytes: int | None = None) -> str:
        size_bytes = self.count(1, f"bytes of a {what}")
        if max_bytes is not None and size_bytes > max_bytes:
            raise self.error(f"a {what} of {size_bytes} bytes is longer than {max_bytes}")
        return self._text(self.take(size_bytes), what)

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(f"string {key!r}")
        if kind == _ARRAY:
            return self._array(self.integer(4), key)
        dtype = self._dtype(kind, key)
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def _array(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._strings(self.count(8, f"strings of {key!r}"), key)
        dtype = self._dtype(kind, key)
        count = self.count(dtype.itemsize, f"numbers of {key!r}")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def _strings(self, count: int, key: str) -> list[str]:
        """The hot loop of loading a vocabulary: one pass over the bytes, no call per string but the decoding."""
        unpack = struct.Struct("<Q").unpack_from
        rest = self.file.view(self.offset, self.file.size_bytes - self.offset)
        limit, position, pieces = len(rest), 0, []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(rest, position)[0]
                if position > limit:
                    raise self.error(f"a string of {key!r} reaches past the end of the file")
                pieces.append(str(rest[start:position], "utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            raise self.error(f"the strings of {key!r} are cut short or not UTF-8") from error
        finally:
            rest.release()
        self.offset += position
        return pieces

    def _dtype(self, kind: int, key: str) -> np.dtype[Any]:
        if kind not in _SCALARS:
            raise self.error(f"metadata key {key!r} has value type {kind}, which does not exist here")
        return np.dtype(_SCALARS[kind])

    def _text(self, data: bytes, what: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"a {what} is not UTF-8") from error

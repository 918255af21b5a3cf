"""A file mapped into memory, read only, with every access checked against its size."""

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path

from npuserve.errors import CheckpointError

_SAMPLE_BYTES = 4096
_NUM_SAMPLES = 64
_MAX_VIEWED_BYTES = 64 << 20


class MappedFile:
    """Read-only view of one regular file. Raises CheckpointError when it is missing, unreadable or empty.

    The file must not shrink while it is open: touching pages past its new end kills the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be opened ({error.strerror}); check the path and its permissions"
            ) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: not a regular file; give a .gguf or .safetensors file")
            if status.st_size == 0:
                raise CheckpointError(f"{path}: the file is empty (0 bytes); fetch it again")
            self.size_bytes = status.st_size
            self.mtime_ns = status.st_mtime_ns
            self._map = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be mapped into memory ({error.strerror})") from error
        finally:
            os.close(descriptor)
        self._viewed_bytes = 0

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Copy `size_bytes` at `offset`; raises CheckpointError unless all of them are inside the file."""
        self._check(offset, size_bytes)
        return self._map[offset : offset + size_bytes]

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """The same bytes without a copy, read only.

        What was viewed before may leave this process's memory, so that a large file that is read once does not fill it;
        pages that are still looked at come back from the system's cache.
        """
        self._check(offset, size_bytes)
        self._viewed_bytes += size_bytes
        if self._viewed_bytes > _MAX_VIEWED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._viewed_bytes = size_bytes
        return memoryview(self._map)[offset : offset + size_bytes]

    def samples(self) -> bytes:
        """Pages spread evenly over the file (all of a small one): tells apart files of equal size and date."""
        if self.size_bytes <= _SAMPLE_BYTES * _NUM_SAMPLES:
            return self._map[:]
        stride = (self.size_bytes - _SAMPLE_BYTES) // (_NUM_SAMPLES - 1)
        return b"".join(self._map[i * stride : i * stride + _SAMPLE_BYTES] for i in range(_NUM_SAMPLES))

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of it; safe to call twice."""
        with suppress(BufferError):
            self._map.close()

    def _check(self, offset: int, size_bytes: int) -> None:
        if offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise CheckpointError(
                f"{self.path}: {size_bytes} bytes at offset {offset} reach past the end of the file"
                f" ({self.size_bytes} bytes); it is truncated or damaged, fetch it again"
            )

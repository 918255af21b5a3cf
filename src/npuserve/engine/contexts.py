"""Contexts beyond the slots: the engine's view of the store, and its twin that keeps nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from npuserve.core import CacheSource
from npuserve.devices.base import Device
from npuserve.engine.page_saver import Contents, PageSaver
from npuserve.engine.restorer import Restorer
from npuserve.engine.scheduler import Admission
from npuserve.engine.sequence import Sequence
from npuserve.errors import DeviceError
from npuserve.kvstore.store import ContextStore, StoreStats

# Pages moved between two steps, for which running streams wait: a page takes about a millisecond.
_RESTORED_AT_ONCE = 8
# Many at once cost less each; a cancel waits for them.
_RESTORED_ALONE = 64
_SAVED_AT_ONCE = 2
_ALL = 1 << 30


class Contexts(Protocol):
    """Used by the engine's thread, `check`, `forget`, `flush` and `stats` aside; the lock is held where it says so."""

    @property
    def num_stored(self) -> Callable[[Sequence], int] | None:
        """For `Scheduler`: how many tokens of a sequence could be restored. Lock held."""

    def begin(self, admissions: list[Admission]) -> None:
        """Plan what is to be saved from and restored to the slots just given away. Lock held."""

    def reconsider(self, sequence: Sequence) -> None:
        """Look again for what a sequence that has a slot, but no row yet, could be spared. Lock held."""

    def is_due(self, contents: Callable[[], Contents]) -> bool:
        """Whether there is a page to move now. Lock held."""

    def move(self, *, others_wait: bool) -> list[tuple[Sequence, DeviceError]]:
        """Save what is about to be overwritten, restore some pages; whose slot was spoilt, and why."""

    def save(self, contents: Callable[[], Contents]) -> None:
        """Save some complete pages."""

    def save_all(self, contents: Callable[[], Contents]) -> None:
        """Save all complete pages."""

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """Take in how long prompt tokens took."""

    def forget(self) -> None:
        """Save nothing of what the slots hold now. Lock held."""

    def flush(self, tier: CacheSource | None) -> None:
        """Empty the store, or one tier of it."""

    def stats(self) -> StoreStats | None: ...

    def check(self) -> None:
        """Raise AssertionError when something is left of requests that have ended. Lock held, nothing alive."""


class NoContexts:
    """What is not in a slot is gone."""

    num_stored = None

    def begin(self, admissions: list[Admission]) -> None: ...

    def reconsider(self, sequence: Sequence) -> None: ...

    def is_due(self, contents: Callable[[], Contents]) -> bool:
        return False

    def move(self, *, others_wait: bool) -> list[tuple[Sequence, DeviceError]]:
        return []

    def save(self, contents: Callable[[], Contents]) -> None: ...

    def save_all(self, contents: Callable[[], Contents]) -> None: ...

    def note_prefill(self, num_tokens: int, seconds: float) -> None: ...

    def forget(self) -> None: ...

    def flush(self, tier: CacheSource | None) -> None: ...

    def stats(self) -> StoreStats | None:
        return None

    def check(self) -> None: ...


class StoredContexts:
    """Contexts in a ContextStore; `lock` is the engine's, `on_progress` wakes it."""

    def __init__(
        self, device: Device, store: ContextStore, lock: AbstractContextManager[object], on_progress: Callable[[], None]
    ) -> None:
        self._store = store
        self._saver = PageSaver(device, store, lock)
        self._restorer = Restorer(device, store, on_progress)

    @property
    def num_stored(self) -> Callable[[Sequence], int] | None:
        return self._restorer.num_stored

    def begin(self, admissions: list[Admission]) -> None:
        for admission in admissions:
            chain = self._restorer.begin(admission.sequence)
            self._saver.begin(admission.slot, chain, admission.displaced)

    def reconsider(self, sequence: Sequence) -> None:
        self._restorer.reconsider(sequence)

    def is_due(self, contents: Callable[[], Contents]) -> bool:
        return self._restorer.is_due() or self._saver.is_due(contents())

    def move(self, *, others_wait: bool) -> list[tuple[Sequence, DeviceError]]:
        self._saver.save_displaced()
        return self._restorer.restore(_RESTORED_AT_ONCE if others_wait else _RESTORED_ALONE)

    def save(self, contents: Callable[[], Contents]) -> None:
        self._saver.save(contents, _SAVED_AT_ONCE)

    def save_all(self, contents: Callable[[], Contents]) -> None:
        self._saver.save(contents, _ALL)

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        self._restorer.prefill_pace.observe(num_tokens, seconds)

    def forget(self) -> None:
        self._saver.forget()

    def flush(self, tier: CacheSource | None) -> None:
        self._store.flush(tier)

    def stats(self) -> StoreStats | None:
        return self._store.stats()

    def check(self) -> None:
        left = self._restorer.num_open + self._saver.num_displaced
        if left:
            raise AssertionError(f"{left} context moves are left of requests that have ended")
        self._store.check()

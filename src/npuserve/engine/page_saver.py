"""From the slots to the store: each complete page once, a few between two steps, the rest before it is overwritten."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from npuserve.core import PAGE_TOKENS
from npuserve.devices.base import Device
from npuserve.engine.slots import Context
from npuserve.errors import DeviceError
from npuserve.kvstore.keys import KeyChain, page_key
from npuserve.kvstore.page import Page
from npuserve.kvstore.store import ContextStore

_log = logging.getLogger(__name__)

Contents = list[tuple[int, Context]]
"""What the slots hold, as `Scheduler.contexts` lists it."""


@dataclass(slots=True)
class _SlotPages:
    """Keys of what a slot holds, and how many of its first pages need no saving any more."""

    chain: KeyChain
    num_done: int = 0


class PageSaver:
    """Belongs to the engine's thread; `lock` is the engine's, held in methods that say so and not in the others.

    A page that could not be saved or found no room is not tried again. A recurrent state can be saved only where it
    stands, so of such families a page is saved when it has just been completed, or never; and what is about to be
    overwritten is saved with an incomplete page that lasts until it is taken up again.
    """

    def __init__(self, device: Device, store: ContextStore, lock: AbstractContextManager[object]) -> None:
        self._device, self._store, self._lock = device, store, lock
        self._is_recurrent = device.capabilities.recurrent
        self._slots: dict[int, _SlotPages] = {}
        self._displaced: list[tuple[int, _SlotPages, Context]] = []
        self._generation = 0

    @property
    def num_displaced(self) -> int:
        return len(self._displaced)

    def begin(self, slot: int, chain: KeyChain, displaced: Context | None) -> None:
        """Note that `slot` now belongs to `chain`, and holds `displaced` until the next step. Lock held."""
        before = self._slots.get(slot)
        if displaced is not None and before is not None:
            self._displaced.append((slot, before, displaced))
        self._slots[slot] = _SlotPages(chain)

    def is_due(self, contents: Contents) -> bool:
        """Whether there is a page to save. Lock held."""
        return self._next(contents) is not None

    def forget(self) -> None:
        """Save nothing of what the slots hold now. Lock held."""
        self._generation += 1
        self._slots.clear()

    def save_displaced(self) -> None:
        """Save what the next step overwrites."""
        for slot, pages, context in self._displaced:
            while (number := self._next_page(pages, context)) is not None:
                pages.num_done = number + 1
                self._save(slot, pages.chain, context, number, self._generation)
            if self._is_recurrent and context.num_tokens % PAGE_TOKENS:
                self._save(slot, pages.chain, context, context.num_tokens // PAGE_TOKENS, self._generation)
        self._displaced.clear()

    def save(self, contents: Callable[[], Contents], num_pages: int) -> None:
        """Save complete pages that are not in the store, `num_pages` at most; `contents` is called with the lock."""
        for _ in range(num_pages):
            with self._lock:
                found = self._next(contents())
                generation = self._generation
            if found is None:
                return
            slot, pages, context = found
            number, pages.num_done = pages.num_done, pages.num_done + 1
            self._save(slot, pages.chain, context, number, generation)

    def _next(self, contents: Contents) -> tuple[int, _SlotPages, Context] | None:
        """The first slot with a page to save: number `num_done` of it."""
        for slot, context in contents:
            pages = self._slots.get(slot)
            if pages is not None and self._next_page(pages, context) is not None:
                return slot, pages, context
        return None

    def _next_page(self, pages: _SlotPages, context: Context) -> int | None:
        """The first page of `context` that is to be saved; those before it are ticked off."""
        while pages.num_done < context.num_tokens // PAGE_TOKENS:
            is_past = self._is_recurrent and (pages.num_done + 1) * PAGE_TOKENS != context.num_tokens
            if not is_past and not self._store.has(pages.chain.key(pages.num_done, context.tokens)):
                return pages.num_done
            pages.num_done += 1
        return None

    def _save(self, slot: int, chain: KeyChain, context: Context, number: int, generation: int) -> None:
        try:
            data = self._device.save(slot, number)
        except DeviceError as error:
            _log.warning("page %d of slot %d was not saved: %s", number, slot, error)
            return
        except Exception:
            _log.exception("saving page %d of slot %d broke", number, slot)
            return
        token_ids = tuple(context.tokens[number * PAGE_TOKENS : min((number + 1) * PAGE_TOKENS, context.num_tokens)])
        parent = chain.parent(number, context.tokens)
        page = Page(page_key(parent, token_ids), parent, token_ids, data)
        with self._lock:
            # The slots may have been flushed meanwhile.
            if generation == self._generation:
                self._store.put(page, ram_only=len(token_ids) < PAGE_TOKENS)

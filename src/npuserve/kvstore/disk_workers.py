"""Reading from and writing to a slow PageStore, each in a thread of its own, so that nobody waits for it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from npuserve.errors import PageStoreError
from npuserve.kvstore.pace import Pace
from npuserve.kvstore.page import KeptPage, Page, PageStore

_log = logging.getLogger(__name__)
# A store that cannot be written is not tried with every page.
_RETRY_S = 30.0
# However small pages are: what waits must be written within seconds when the server stops.
_MOST_QUEUED = 500
# Pages that are read ahead of the one at hand.
_MOST_EXPECTED = 256


class Reading:
    """Pages of one context on their way; `ready` grows in the order asked for, None where a page cannot be had."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = tuple(keys)
        self.ready: dict[bytes, Page | None] = {}
        self.is_cancelled = False

    def cancel(self) -> None:
        """Read no more of it."""
        self.is_cancelled = True


class DiskReader:
    """Reads pages one after the other. `on_page` and then `on_progress` are called from the thread for each."""

    def __init__(
        self, pages: PageStore, on_page: Callable[[bytes, Page | None, PageStoreError | None], None], pace: Pace
    ) -> None:
        self._pages, self._on_page, self._pace = pages, on_page, pace
        self._wake = threading.Condition()
        self._queue: deque[tuple[Reading, Callable[[], None]]] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kv-reader", daemon=True)
        self._thread.start()

    def read(self, keys: Sequence[bytes], on_progress: Callable[[], None]) -> Reading:
        """Start to read."""
        reading = Reading(keys)
        with self._wake:
            self._queue.append((reading, on_progress))
            self._wake.notify()
        return reading

    def close(self) -> None:
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._queue or self._is_closed):
                    self._wake.wait()
                if self._is_closed:
                    return
                reading, on_progress = self._queue.popleft()
            self._pages.expect(reading.keys[:_MOST_EXPECTED])
            for place, key in enumerate(reading.keys):
                if reading.is_cancelled or self._is_closed:
                    break
                page = self._get(key)
                if page is None:
                    # What lies behind a missing page is of no use.
                    reading.ready.update(dict.fromkeys(reading.keys[place:]))
                    reading.is_cancelled = True
                else:
                    reading.ready[key] = page
                on_progress()

    def _get(self, key: bytes) -> Page | None:
        started_s = time.monotonic()
        page, error = None, None
        try:
            page = self._pages.get(key)
        except PageStoreError as failure:
            error = failure
        except Exception as failure:
            _log.exception("reading a saved page broke")
            error = PageStoreError(str(failure))
        if page is not None:
            self._pace.observe(1, time.monotonic() - started_s)
        self._on_page(key, page, error)
        return page


class DiskWriter:
    """Writes pages in the order they come. `on_done` is called from the thread for each: what is kept, or the error."""

    def __init__(
        self,
        pages: PageStore,
        queue_bytes: int,
        on_done: Callable[[Page, KeptPage | None, PageStoreError | None], None],
    ) -> None:
        self._pages, self._limit_bytes, self._on_done = pages, queue_bytes, on_done
        self._wake = threading.Condition()
        self._queue: dict[bytes, Page] = {}
        self._queued_bytes = 0
        self._is_busy = False
        self._is_closed = False
        self._retry_at_s = 0.0
        self._thread = threading.Thread(target=self._run, name="kv-writer", daemon=True)
        self._thread.start()

    def __contains__(self, key: bytes) -> bool:
        return key in self._queue

    def offer(self, page: Page) -> bool:
        """Take a page to be written if there is room for it."""
        with self._wake:
            if page.key in self._queue:
                return True
            if self._is_closed or time.monotonic() < self._retry_at_s:
                return False
            is_full = len(self._queue) >= _MOST_QUEUED or self._queued_bytes + page.size_bytes > self._limit_bytes
            if self._queue and is_full:
                return False
            self._queue[page.key] = page
            self._queued_bytes += page.size_bytes
            self._wake.notify_all()
            return True

    def forget(self) -> None:
        """Drop what waits."""
        with self._wake:
            self._queue.clear()
            self._queued_bytes = 0
            self._wake.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was taken is written; False when it takes longer."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._queue and not self._is_busy, timeout_s)

    def close(self) -> None:
        """Stop after the page at hand."""
        self.forget()
        with self._wake:
            self._is_closed = True
            self._wake.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._is_busy = False
                self._wake.notify_all()
                while not (self._queue or self._is_closed):
                    self._wake.wait()
                if self._is_closed:
                    return
                page = self._queue.pop(next(iter(self._queue)))
                self._queued_bytes -= page.size_bytes
                self._is_busy = True
            self._put(page)

    def _put(self, page: Page) -> None:
        kept, error = None, None
        try:
            kept = self._pages.put(page)
        except PageStoreError as failure:
            error = failure
        except Exception as failure:
            _log.exception("writing a saved page broke")
            error = PageStoreError(str(failure))
        if error is not None:
            self._retry_at_s = time.monotonic() + _RETRY_S
            self.forget()
        self._on_done(page, kept, error)

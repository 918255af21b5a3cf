"""The RAM tier: the twin of the disk, and fast."""

from collections.abc import Sequence

from npuserve.kvstore.page import KeptPage, Page


class RamStore:
    """A PageStore in a dictionary."""

    def __init__(self) -> None:
        self._pages: dict[bytes, Page] = {}
        self._size_bytes = 0

    def get(self, key: bytes) -> Page | None:
        """See `PageStore`; the data is shared, not copied."""
        page = self._pages.get(key)
        if page is not None:
            # The order of the dictionary is the order of use.
            self._pages[key] = self._pages.pop(key)
        return page

    def expect(self, keys: Sequence[bytes]) -> None:
        """Nothing is faster than being here."""

    def put(self, page: Page) -> KeptPage:
        if page.key not in self._pages:
            self._pages[page.key] = page
            self._size_bytes += page.size_bytes
        return KeptPage(page.key, page.parent, page.size_bytes)

    def drop(self, key: bytes) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self._size_bytes -= page.size_bytes

    def size(self) -> int:
        return self._size_bytes

    def check(self) -> list[KeptPage]:
        return [KeptPage(page.key, page.parent, page.size_bytes) for page in self._pages.values()]

    def close(self) -> None:
        """Nothing to release."""

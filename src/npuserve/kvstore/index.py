"""Which pages a tier holds and which go first when it is full. Pure."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    parent: bytes
    size_bytes: int
    token_ids: tuple[int, ...]
    num_pins: int = 0


class PageIndex:
    """Least recently used, counted in bytes, children before parents.

    A page whose child is here, or that is pinned, is not evicted: it would leave the child unreachable, or be missed
    by whoever is about to read it. A page may be here without its parent (which may be in another tier).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        # Oldest first. A use moves a page and then its ancestors to the end, so no page is younger than its parent.
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._children: dict[bytes, dict[bytes, None]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[bytes]:
        """Keys, the one used longest ago first."""
        return iter(self._entries)

    @property
    def num_pins(self) -> int:
        return sum(entry.num_pins for entry in self._entries.values())

    def add(
        self,
        key: bytes,
        parent: bytes,
        size_bytes: int,
        token_ids: tuple[int, ...] = (),
        *,
        is_orphan: bool = False,
    ) -> list[bytes]:
        """Enter a page as just used; returns the keys evicted for it, which are no longer here.

        Its own is among them when the rest cannot go. Nothing changes but the order when it is here already. An orphan,
        whose parent is nowhere, is of use only if that comes back: it is entered as if it had been used longest ago.
        """
        if key in self._entries:
            self.touch(key)
            return []
        self._entries[key] = _Entry(parent, size_bytes, token_ids)
        self._children.setdefault(parent, {})[key] = None
        self.size_bytes += size_bytes
        if is_orphan:
            self._entries.move_to_end(key, last=False)
        else:
            self.touch(key)
        return self._evict()

    def remove(self, key: bytes) -> bool:
        """Take a page out, whatever hangs on it; False when it is not here. Its children stay: they are content too."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.size_bytes -= entry.size_bytes
        siblings = self._children[entry.parent]
        del siblings[key]
        if not siblings:
            del self._children[entry.parent]
        return True

    def resize(self, capacity_bytes: int) -> list[bytes]:
        """Set the limit; returns what is evicted for it."""
        self.capacity_bytes = capacity_bytes
        return self._evict()

    def clear(self) -> None:
        self._entries.clear()
        self._children.clear()
        self.size_bytes = 0

    def touch(self, key: bytes) -> None:
        """Note a use of a page and, with it, of all before it."""
        while (entry := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
            key = entry.parent

    def pin(self, key: bytes) -> None:
        """Keep a page from eviction until it is unpinned as often."""
        self._entries[key].num_pins += 1

    def unpin(self, key: bytes) -> list[bytes]:
        """Undo one pin, of a page that may have been removed meanwhile; returns what is evicted now that it can be."""
        entry = self._entries.get(key)
        if entry is None or entry.num_pins == 0:
            return []
        entry.num_pins -= 1
        return self._evict()

    def children(self, parent: bytes) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Pages right behind `parent` with their tokens, the one entered last first."""
        for key in reversed(self._children.get(parent, {})):
            yield key, self._entries[key].token_ids

    def check(self) -> None:
        """Raise AssertionError when the books do not add up."""
        size_bytes = sum(entry.size_bytes for entry in self._entries.values())
        if size_bytes != self.size_bytes:
            raise AssertionError(f"{self.size_bytes} bytes are booked, but the pages have {size_bytes}")
        listed = sum(map(len, self._children.values()))
        if listed != len(self._entries):
            raise AssertionError(f"{len(self._entries)} pages are here, but {listed} are listed as children")
        if self.size_bytes > self.capacity_bytes and self.num_pins == 0:
            raise AssertionError(f"{self.size_bytes} bytes exceed the limit of {self.capacity_bytes}")

    def _evict(self) -> list[bytes]:
        evicted = []
        while self.size_bytes > self.capacity_bytes:
            key = next((key for key, entry in self._entries.items() if self._may_go(key, entry)), None)
            if key is None:
                break
            self.remove(key)
            evicted.append(key)
        return evicted

    def _may_go(self, key: bytes, entry: _Entry) -> bool:
        return entry.num_pins == 0 and key not in self._children

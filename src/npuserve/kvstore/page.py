"""A saved page, and the seam to where pages are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Page:
    """What a device saved for `token_ids` (1 to PAGE_TOKENS of them) behind the context that `parent` names.

    `data` is uint8 [n].
    """

    key: bytes
    parent: bytes
    token_ids: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes


class KeptPage(NamedTuple):
    """A page that a store says it has, unread; what it takes there in bytes."""

    key: bytes
    parent: bytes
    size_bytes: int


class PageStore(Protocol):
    """Keeps pages by key, without a policy: what goes in stays until it is dropped. Used by several threads at once."""

    def get(self, key: bytes) -> Page | None:
        """The page as it was put; None when it is not there, or was there damaged and now is not.

        Raises PageStoreError when the store itself cannot be read.
        """

    def expect(self, keys: Sequence[bytes]) -> None:
        """Begin to fetch pages that will be asked for next, if that makes it faster; never fails."""

    def put(self, page: Page) -> KeptPage:
        """Keep a page, replacing none: a key stands for one content. Raises PageStoreError; then nothing is kept."""

    def drop(self, key: bytes) -> None:
        """Forget a page; nothing happens when it is not there or cannot be removed."""

    def size(self) -> int:
        """Bytes of all pages."""

    def check(self) -> list[KeptPage]:
        """What is there, the one used longest ago first; leftovers of interrupted writes are removed."""

    def close(self) -> None:
        """Release what the store holds open; pages that outlive a process stay."""

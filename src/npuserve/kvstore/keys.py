"""Keys of pages: a BLAKE2b chain, so that a key names everything that the page's content depends on."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from npuserve.core import PAGE_TOKENS

KEY_BYTES = 20
_ROOT, _PAGE = b"npuserve root", b"npuserve page"


def root_key(model: str, page_format: str, salt: str = "") -> bytes:
    """Where the chains of one model (weights and their format), one page format and one salt begin."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (model, page_format, salt)]
    # Lengths go in first: no two lists of parts read the same.
    return _digest(np.array([len(part) for part in parts], "<u8").tobytes() + b"".join(parts), _ROOT)


def page_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of the page with these 1 to PAGE_TOKENS tokens behind `parent`, a page's key or a root's."""
    assert len(parent) == KEY_BYTES, f"a key has {KEY_BYTES} bytes, not {len(parent)}"
    assert 1 <= len(token_ids) <= PAGE_TOKENS, f"a page has 1 to {PAGE_TOKENS} tokens, not {len(token_ids)}"
    return _digest(parent + np.array(token_ids, "<u4").tobytes(), _PAGE)


class KeyChain:
    """The keys of one growing context's complete pages, each computed once."""

    def __init__(self, root: bytes) -> None:
        self._keys = [root]

    def key(self, page: int, token_ids: Sequence[int]) -> bytes:
        """The key of `page` of the context `token_ids`, which goes on as it did in earlier calls."""
        keys = self._keys
        while len(keys) <= page + 1:
            start = (len(keys) - 1) * PAGE_TOKENS
            keys.append(page_key(keys[-1], token_ids[start : start + PAGE_TOKENS]))
        return keys[page + 1]

    def parent(self, page: int, token_ids: Sequence[int]) -> bytes:
        """The key of the page before `page`, or the root."""
        return self._keys[0] if page == 0 else self.key(page - 1, token_ids)


def _digest(data: bytes, person: bytes) -> bytes:
    return blake2b(data, digest_size=KEY_BYTES, person=person).digest()

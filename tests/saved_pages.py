"""Pages to put into stores, with content that follows from their tokens."""

from collections.abc import Sequence

import numpy as np

from npuserve.core import PAGE_TOKENS
from npuserve.kvstore.keys import page_key, root_key
from npuserve.kvstore.page import Page

PAGE_BYTES = 1000
MODEL = "tiny test1"
ROOT = root_key("tiny", "test1")


def page_of(parent: bytes, token_ids: Sequence[int]) -> Page:
    """The one page with these tokens behind `parent`."""
    key = page_key(parent, token_ids)
    data = np.random.default_rng(int.from_bytes(key)).integers(0, 256, PAGE_BYTES, np.uint8)
    return Page(key, parent, tuple(token_ids), data)


def pages_of(token_ids: Sequence[int], root: bytes = ROOT) -> list[Page]:
    """The complete pages of a context."""
    pages: list[Page] = []
    for start in range(0, len(token_ids) - PAGE_TOKENS + 1, PAGE_TOKENS):
        parent = pages[-1].key if pages else root
        pages.append(page_of(parent, token_ids[start : start + PAGE_TOKENS]))
    return pages

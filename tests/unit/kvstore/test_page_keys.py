import hypothesis.strategies as st
import pytest
from hypothesis import given

from npuserve.kvstore.keys import KeyChain, page_key, root_key

ROOT = root_key("model", "format")
token_lists = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64)


def test_every_part_of_the_root_counts_and_none_runs_into_the_next() -> None:
    parts = [("a", "b", ""), ("a", "b", "c"), ("a", "bc", ""), ("ab", "c", ""), ("a", "", "bc"), ("", "ab", "c")]
    assert len({root_key(*part) for part in parts}) == len(parts)


@given(token_lists, token_lists)
def test_different_tokens_have_different_keys(one: list[int], other: list[int]) -> None:
    assert (page_key(ROOT, one) == page_key(ROOT, other)) == (one == other)


def test_the_same_tokens_behind_another_parent_have_another_key() -> None:
    assert page_key(ROOT, [1, 2]) != page_key(page_key(ROOT, [3]), [1, 2])


@pytest.mark.parametrize("token_ids", [[], [0] * 65])
def test_a_page_has_1_to_64_tokens(token_ids: list[int]) -> None:
    with pytest.raises(AssertionError, match="1 to 64"):
        page_key(ROOT, token_ids)


def test_a_chain_gives_the_keys_of_its_pages_in_any_order() -> None:
    token_ids = list(range(200))
    first = page_key(ROOT, token_ids[:64])
    second = page_key(first, token_ids[64:128])
    chain = KeyChain(ROOT)
    assert chain.key(1, token_ids) == second
    assert chain.key(0, token_ids) == first
    assert (chain.parent(0, token_ids), chain.parent(1, token_ids)) == (ROOT, first)

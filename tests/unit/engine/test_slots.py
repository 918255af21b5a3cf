import pytest

from npuserve.engine.slots import SlotTable


def warm(*contexts: tuple[list[int], str], recurrent: bool = False) -> SlotTable:
    """A table whose free slots 0, 1, ... hold `contexts`, given back in that order."""
    table = SlotTable(len(contexts), recurrent=recurrent)
    taken = [table.acquire([99], "")[0] for _ in contexts]
    for slot, (tokens, salt) in zip(taken, contexts, strict=True):
        table.release(slot, tokens, salt)
    return table


def test_the_slot_with_the_longest_common_prefix_is_taken() -> None:
    table = warm(([1, 2], ""), ([1, 2, 3], ""), ([1, 9, 3, 4], ""))
    assert table.acquire([1, 2, 3, 4], "")[:2] == (1, 3)
    assert table.acquire([1, 2, 3, 4], "")[:2] == (0, 2)
    assert table.acquire([1, 2, 3, 4], "")[:2] == (2, 1)


def test_the_last_prompt_token_is_always_run_anew() -> None:
    assert warm(([1, 2, 3, 4], "")).acquire([1, 2, 3], "")[:2] == (0, 2)
    assert warm(([1], "")).acquire([1], "")[:2] == (0, 0)


def test_a_context_of_another_salt_is_not_reused() -> None:
    table = warm(([1, 2, 3], "alice"), ([1, 2], "bob"))
    assert table.acquire([1, 2, 3, 4], "bob")[:2] == (1, 2)
    assert table.acquire([1, 2, 3, 4], "bob")[:2] == (0, 0)


def test_an_empty_slot_is_taken_before_a_warm_one_and_the_oldest_warm_one_next() -> None:
    table = warm(([1], ""), ([2], ""), ([], ""))
    assert [table.acquire([7], "")[0] for _ in range(3)] == [2, 0, 1]


def test_a_recurrent_context_is_resumed_whole_or_not_at_all() -> None:
    assert warm(([1, 2, 3], ""), recurrent=True).acquire([1, 2, 3, 4], "")[:2] == (0, 3)
    assert warm(([1, 2, 3], ""), recurrent=True).acquire([1, 2, 4, 5], "")[:2] == (0, 0)
    assert warm(([1, 2, 3], ""), recurrent=True).acquire([1, 2, 3], "")[:2] == (0, 0)


def test_forgotten_contexts_are_not_reused() -> None:
    table = warm(([1, 2, 3], ""))
    table.forget()
    assert table.acquire([1, 2, 3, 4], "")[:2] == (0, 0)


def test_no_slot_is_given_twice_or_taken_back_twice() -> None:
    table = SlotTable(1)
    table.acquire([1], "")
    with pytest.raises(LookupError):
        table.acquire([1], "")
    table.release(0, [1], "")
    with pytest.raises(AssertionError, match="released twice"):
        table.release(0, [1], "")


def test_what_is_lost_in_a_slot_is_told() -> None:
    table = warm(([1, 2, 3, 4], "me"))
    acquired = table.acquire([1, 2, 9], "me")
    assert acquired.displaced is not None
    assert (list(acquired.displaced.tokens), acquired.displaced.salt) == ([1, 2, 3, 4], "me")
    assert warm(([1, 2], "")).acquire([1, 2, 3], "").displaced is None


def test_another_context_is_left_alone_when_the_shared_start_is_stored() -> None:
    contexts = [([7, 8], ""), (list(range(1000)), "")]
    prompt = [*range(100), 5]
    assert warm(*contexts).acquire(prompt, "", 0)[:2] == (1, 100)
    assert warm(*contexts).acquire(prompt, "", 90)[:2] == (0, 0)


def test_a_slot_is_used_again_when_most_of_it_is_or_a_page_more_than_is_stored() -> None:
    contexts = [([7, 8], ""), (list(range(1000)), "")]
    assert warm(*contexts).acquire([*range(600), 5], "", 600)[:2] == (1, 600)
    assert warm(*contexts).acquire([*range(300), 5], "", 300 - 64)[:2] == (1, 300)


def test_contexts_of_free_slots_are_listed_last_freed_first() -> None:
    table = warm(([1], "a"), ([], ""), ([2, 3], "b"))
    assert [(slot, list(context.tokens), context.salt) for slot, context in table.contexts()] == [
        (2, [2, 3], "b"),
        (0, [1], "a"),
    ]


@pytest.mark.parametrize("num_common", [0, 1, 127, 128, 129, 255, 256, 300])
def test_the_common_start_is_exact_whatever_its_length(num_common: int) -> None:
    held = list(range(300))
    prompt = [*held[:num_common], 999, *held[num_common + 1 :], 1, 2]
    assert warm((held, "")).acquire(prompt, "")[:2] == (0, num_common)
    assert warm((held, "")).acquire(held[: num_common + 1], "")[:2] == (0, min(num_common, 299))

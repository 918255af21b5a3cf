from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuserve.text.stop_strings import StopStrings

letters = st.text(alphabet="ab^-]", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab^-]", min_size=1, max_size=5), min_size=1, max_size=4)


def until_stop(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The specification: the match that ends first, of those the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


@given(letters, stop_lists, st.lists(st.integers(0, 30), max_size=5), st.booleans())
def test_pieces_joined_equal_the_text_up_to_the_first_match(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher = StopStrings(stops, include=include)
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    sent = ""
    for start, stop in pairwise(edges):
        sent += matcher.push(text[start:stop])
        if matcher.found is not None:
            break
    if matcher.found is None:
        sent += matcher.finish()
    assert (sent, matcher.found) == until_stop(text, stops, include)


@given(letters, stop_lists)
def test_no_beginning_of_a_stop_string_is_sent_while_it_may_still_be_one(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    sent = ""
    for count, character in enumerate(text, 1):
        sent += matcher.push(character)
        if matcher.found is not None:
            return
        held = text[len(sent) : count]
        candidates = [text[:count][-n:] for n in range(1, count + 1)]
        longest = max((c for c in candidates if any(s.startswith(c) for s in stops)), key=len, default="")
        assert held == longest


def test_held_text_is_released_when_it_is_no_stop_string() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert matcher.push("Hello\n\nUs") == "Hello"
    assert matcher.push("ual") == "\n\nUsual"


def test_held_text_is_released_at_the_end() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the EN") == "the "
    assert matcher.finish() == "EN"


@pytest.mark.parametrize(("include", "sent"), [(False, "a "), (True, "a STOP")])
def test_text_after_the_match_is_dropped(include: bool, sent: str) -> None:
    matcher = StopStrings(["STOP"], include=include)
    assert matcher.push("a STOP b STOP") == sent
    assert matcher.found == "STOP"


def test_no_stop_strings_hold_nothing() -> None:
    assert StopStrings([]).push("anything") == "anything"


def test_work_is_linear_in_the_text_for_the_worst_stop_string() -> None:
    steps = 0

    class Counting(str):
        __slots__ = ()

        def __getitem__(self, key: object) -> str:
            nonlocal steps
            steps += 1
            return super().__getitem__(key)  # type: ignore[index]

    matcher = StopStrings(["a" * 1023 + "b"])
    for _ in range(20):
        matcher.push(Counting("a" * 1000))
    assert matcher.found is None
    assert steps < 40_000

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from npuserve.text.detokenizer import Detokenizer
from npuserve.text.pipeline import Pipeline
from npuserve.text.stop_strings import StopStrings
from npuserve.text.token_bytes import TokenBytes
from tiny_tokenizer import tiny_tokenizer

TABLE = TokenBytes(tiny_tokenizer())
VOCAB_SIZE = tiny_tokenizer().get_vocab_size()


def pipeline(stops: list[str], min_tokens: int = 0) -> Pipeline:
    return Pipeline(Detokenizer(TABLE), StopStrings(stops) if stops else None, min_tokens=min_tokens)


def run(pieces: list[list[int]], stops: list[str], min_tokens: int = 0) -> tuple[str, int, bool]:
    joined = pipeline(stops, min_tokens)
    text = "".join(joined.push(piece).text for piece in pieces)
    return text + joined.finish().text, joined.num_tokens, joined.stopped


words = st.sampled_from(["Zürich", " the", "😀", "a", "b", "ab", "東", "<|im_end|>"])
replies = st.one_of(
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30),
    st.lists(words, max_size=12).map(lambda parts: tiny_tokenizer().encode("".join(parts)).ids),
)
stop_lists = st.lists(st.sampled_from(["ab", "a the", "b", "ürich", "😀😀", "東a", "\ufffd"]), max_size=3)


@given(replies, stop_lists, st.lists(st.integers(0, 30), max_size=8), st.integers(0, 4))
def test_streamed_deltas_joined_equal_the_unstreamed_text(
    ids: list[int], stops: list[str], cuts: list[int], min_tokens: int
) -> None:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [ids[start:stop] for start, stop in pairwise(edges)]
    assert run(pieces, stops, min_tokens) == run([ids], stops, min_tokens)


@given(replies, stop_lists.filter(bool))
def test_visible_text_ends_before_the_first_stop_string(ids: list[int], stops: list[str]) -> None:
    text, _, stopped = run([ids], stops)
    whole = b"".join(TABLE[i] for i in ids).decode("utf-8", "replace")
    assert whole.startswith(text)
    assert stopped == any(stop in whole for stop in stops)
    assert not any(stop in text for stop in stops)


def test_tokens_after_the_stop_string_are_not_counted() -> None:
    ids = tiny_tokenizer().encode("one STOP two").ids
    num_needed = next(n for n in range(len(ids) + 1) if "STOP" in tiny_tokenizer().decode(ids[:n]))
    assert run([ids], ["STOP"]) == ("one ", num_needed, True)


def test_unfinished_character_comes_before_the_held_text_is_released() -> None:
    joined = pipeline(["aX"])
    first_byte = next(i for i in range(VOCAB_SIZE) if TABLE[i] == b"\xf0")
    letter = next(i for i in range(VOCAB_SIZE) if TABLE[i] == b"a")
    assert joined.push([letter, first_byte]).text == ""
    assert joined.finish().text == "a\ufffd"


def test_stop_string_within_min_tokens_is_passed_over() -> None:
    letter = next(i for i in range(VOCAB_SIZE) if TABLE[i] == b"a")
    assert run([[letter] * 4], ["a"], min_tokens=3) == ("aa", 3, True)

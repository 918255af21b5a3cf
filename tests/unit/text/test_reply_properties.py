"""What holds for every reply: how its tokens are cut into pieces does not show."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuserve.core import TokenLogprob
from npuserve.text.detokenizer import Detokenizer
from npuserve.text.piece import NOTHING, Piece
from npuserve.text.pipeline import Pipeline
from npuserve.text.reasoning import ReasoningSplitter
from npuserve.text.stop_strings import StopStrings
from npuserve.text.token_bytes import TokenBytes
from npuserve.text.tools.formats import FORMATS, HERMES, ToolFormat
from tiny_tokenizer import byte_tokens, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TABLE = TokenBytes(TOKENIZER)
VOCAB_SIZE = TOKENIZER.get_vocab_size()

FRAGMENTS = st.sampled_from(
    [
        *("<think>", "</think>", "<thi", "</th", " \n", "\n\n", "Zürich", "😀", "東", "<", "{", "}", '"', "a", " the "),
        *("<tool_call>", "</tool_call>", '{"name": "f", "arguments": ', '{"a": "x}"}', "{}}", '{"name"', "</tool_c"),
        *("<|python_tag|>", '{"name": "f", "parameters": {"b": [1, {}]}}', "; ", '{"name": "zzz", "parameters": {}}'),
        *("<|tool_call_start|>", "[f(a=1, b='x')]", "[f(", "<|tool_call_end|>", '[{"name": "f", "arguments": {}}]'),
        *("<|tool_call>", 'call:f{a:<|"|>x<|"|>}', "<tool_call|>", "<start_function_call>", "<end_function_call>"),
        *("call:f{a:<escape>x<escape>,n:1}", "STOP", "ST", "<function=f>", "<parameter=a>1</parameter>", "</function>"),
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)
REPLIES = st.one_of(
    TEXTS.map(lambda text: TOKENIZER.encode(text).ids),
    TEXTS.map(lambda text: byte_tokens(text.encode())),
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40),
)
STOPS = st.lists(st.sampled_from(["STOP", "ürich", "</", "x}", "\n\n", "<tool", "東a"]), max_size=2)


class Kind(NamedTuple):
    """Which stages a pipeline has."""

    stops: list[str]
    form: ToolFormat | None
    parallel: bool
    splits: bool
    opened: bool
    entries: bool


KINDS = st.builds(
    Kind, STOPS, st.sampled_from([None, *FORMATS]), st.booleans(), st.booleans(), st.booleans(), st.booleans()
)


def pipeline(kind: Kind) -> Pipeline:
    return Pipeline(
        Detokenizer(TABLE),
        StopStrings(kind.stops) if kind.stops else None,
        reasoning=ReasoningSplitter(opened=kind.opened) if kind.splits else None,
        tools=kind.form.parser({"f": {}}, parallel=kind.parallel) if kind.form else None,
    )


def run(kind: Kind, pieces: Sequence[Sequence[int]]) -> tuple[Piece, Pipeline]:
    made = pipeline(kind)
    said = NOTHING
    for ids in pieces:
        logprobs = [TokenLogprob(-float(token)) for token in ids] if kind.entries else []
        said = said.joined(made.push(ids, logprobs))
    return said.joined(made.finish()), made


def summary(kind: Kind, pieces: Sequence[Sequence[int]]) -> tuple[object, ...]:
    """All that a client could tell apart, the random ids of calls left out."""
    said, made = run(kind, pieces)
    calls: list[list[str]] = []
    for delta in said.calls:
        if delta.name is not None:
            assert delta.number == len(calls)
            assert delta.id
            calls.append([delta.name, ""])
        calls[delta.number][1] += delta.arguments
    state = (made.stopped, made.num_tokens, made.num_reasoning_tokens, made.has_calls)
    return said.text, said.reasoning, calls, said.entries, state


@settings(max_examples=400)
@given(REPLIES, KINDS, st.lists(st.integers(0, 40), max_size=10))
def test_pieces_joined_do_not_depend_on_the_cuts(ids: list[int], kind: Kind, cuts: list[int]) -> None:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    expected = summary(kind, [ids])
    assert summary(kind, [ids[start:stop] for start, stop in pairwise(edges)]) == expected
    assert summary(kind, [[token] for token in ids]) == expected


@settings(max_examples=300)
@given(REPLIES, st.sampled_from(FORMATS))
def test_text_without_calls_is_untouched(ids: list[int], form: ToolFormat) -> None:
    said, made = run(Kind([], form, True, False, False, False), [ids])
    if not said.calls:
        assert said.text == Detokenizer(TABLE).whole(ids)
        assert not made.has_calls


@settings(max_examples=300)
@given(REPLIES, STOPS, st.booleans())
def test_every_entry_is_a_token_whose_text_is_not_cut_off(ids: list[int], stops: list[str], splits: bool) -> None:
    said, made = run(Kind(stops, None, True, splits, False, True), [ids])
    tokens = [entry.token for entry in said.entries]
    assert tokens == ids[: len(tokens)]
    if not made.stopped:
        assert len(tokens) == len(ids)
    elif not splits:
        assert b"".join(TABLE[token] for token in tokens).decode("utf-8", "replace").startswith(said.text)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(["a", "<think", ">", "b\n", "</think>", "<think>"]), max_size=8), st.integers(0, 60))
def test_thoughts_hold_no_closing_tag_wherever_the_reply_is_cut(parts: list[str], cut: int) -> None:
    text = "<think>" + "".join(parts)
    said, _ = run(Kind([], None, True, True, False, False), [byte_tokens(text.encode())[:cut]])
    shown = text[7:cut].partition("</think>")[0].strip()
    assert "</think>" not in said.reasoning
    assert said.reasoning == (shown if cut >= 7 else "")


@pytest.mark.parametrize("num_characters", [20_000])
@pytest.mark.parametrize("unit", [" ", "<tool_call>", '<tool_call>{"name": "', "<", "{", "<|tool_call_start|>["])
@pytest.mark.parametrize("form", FORMATS)
def test_hostile_replies_cost_linear_work(form: ToolFormat, unit: str, num_characters: int) -> None:
    """Quadratic work on a reply of this length would take minutes."""
    parser = form.parser({"f": {}}, parallel=True)
    text = unit * (num_characters // len(unit))
    for at in range(0, len(text), 3):
        parser.push(text[at : at + 3])
    parser.finish()


def test_arguments_pass_byte_for_byte() -> None:
    arguments = '{ "a" :\t"\\u00fc\\n{]}", "b":[ 1.0e5 ,{"c":null}] }'
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    said, _ = run(Kind([], HERMES, True, False, False, False), [byte_tokens(text.encode())])
    assert "".join(call.arguments for call in said.calls) == arguments


def test_entries_wait_for_the_text_they_belong_to() -> None:
    made = pipeline(Kind(["abX"], None, True, False, False, True))
    pieces = [made.push(byte_tokens(letter), [TokenLogprob(0.0)]) for letter in (b"a", b"b", b"c")]
    assert [(piece.text, len(piece.entries)) for piece in pieces] == [("", 0), ("", 0), ("abc", 3)]


def test_entries_of_half_a_character_wait_for_the_other_half() -> None:
    made = pipeline(Kind([], None, True, False, False, True))
    pieces = [made.push([token], [TokenLogprob(0.0)]) for token in byte_tokens("aü".encode())]
    assert [(piece.text, len(piece.entries)) for piece in pieces] == [("a", 1), ("", 0), ("ü", 2)]

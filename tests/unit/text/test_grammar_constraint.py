import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npuserve.errors import DeviceError, RequestError
from npuserve.text.grammar import Grammar, calls_grammar, choice_grammar, json_grammar, lark_grammar, regex_grammar
from npuserve.text.grammar_compiler import GrammarCompiler
from npuserve.text.grammar_constraint import GrammarConstraint
from npuserve.text.tokenizer import Tokenizer
from npuserve.text.tools.formats import HERMES, LFM2
from tiny_tokenizer import tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer())
END = 2
WIDTH = TOKENIZER.vocab_size + 70  # logits are wider than the vocabulary
COMPILER = GrammarCompiler(TOKENIZER, WIDTH, frozenset({0, END}))


def allowed(constraint: GrammarConstraint) -> set[int]:
    mask = np.frombuffer(constraint.allowed(), np.uint8)
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def accepts(grammar: Grammar, text: str, thoughts: str | None = None) -> bool:
    """Whether `text` may be said and then ended."""
    constraint = COMPILER.compile(grammar, thoughts)
    for token in TOKENIZER.encode_prompt(text):
        if token not in allowed(constraint):
            return False
        constraint.accept(token)
    return END in allowed(constraint)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (regex_grammar("[ab]+c", "p"), ["abac", "bc"], ["c", "ab", "abcx"]),
        (choice_grammar(['a "b"', "東京"], "p"), ['a "b"', "東京"], ["a", "東"]),
        (lark_grammar('start: "x" y?\ny: /[0-9]/', "p"), ["x", "x7"], ["y", "x77"]),
        (lark_grammar('root ::= "x" [0-9]*', "p"), ["x", "x77"], ["y"]),
        (json_grammar({"type": "object"}, "p"), ['{"a": [1, null]}', '{\n  "a": 1\n}'], ['{"a":  1}', "[1]", " {}"]),
        (json_grammar({"type": "integer", "x-guidance": {"whitespace_pattern": "q*"}}, "p"), ["7"], ["qq7"]),
    ],
)  # fmt: skip
def test_grammar_allows_just_what_it_means(grammar: Grammar, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (choice_grammar(["<|im_end|>!", "<|im_start|>"], "p"), "<|im_end|>!"),
        (regex_grammar(r"a<\|im_start\|>b", "p"), "a<|im_start|>b"),
        (lark_grammar('start: "<|im_end|>"', "p"), "<|im_end|>"),
        (json_grammar({"const": "<|im_end|>"}, "p"), '"<|im_end|>"'),
        (json_grammar({"properties": {"<|im_end|>": {}}, "required": ["<|im_end|>"]}, "p"), '{"<|im_end|>":1}'),
    ],
)  # fmt: skip
def test_control_token_that_a_grammar_spells_is_text(grammar: Grammar, text: str) -> None:
    constraint = COMPILER.compile(grammar)
    for token in TOKENIZER.encode_plain(text):
        possible = allowed(constraint)
        assert token in possible
        assert not possible & TOKENIZER.special_ids
        constraint.accept(token)
    assert END in allowed(constraint)


def test_tokens_beyond_the_vocabulary_are_never_allowed() -> None:
    for thoughts in (None, "open", "may"):
        constraint = COMPILER.compile(regex_grammar("(?s:.*)", "p"), thoughts)
        assert max(allowed(constraint)) < TOKENIZER.vocab_size


def test_nothing_but_the_end_follows_what_is_complete() -> None:
    constraint = COMPILER.compile(choice_grammar(["a"], "p"))
    constraint.accept(TOKENIZER.encode_prompt("a")[0])
    assert allowed(constraint) == {0, END}
    constraint.accept(END)
    assert allowed(constraint) <= {0, END}


def test_each_constraint_goes_its_own_way() -> None:
    first, second = (COMPILER.compile(regex_grammar("ab|cd", "p")) for _ in range(2))
    a, c = (TOKENIZER.encode_prompt(letter)[0] for letter in "ac")
    first.accept(a)
    second.accept(c)
    assert allowed(first) != allowed(second)


def test_end_is_the_end_however_often_it_is_said() -> None:
    constraint = COMPILER.compile(regex_grammar("a*", "p"))
    for _ in range(3):
        assert END in allowed(constraint)
        constraint.accept(END)


def test_token_that_was_not_allowed_fails_for_good() -> None:
    constraint = COMPILER.compile(choice_grammar(["a"], "the_field"))
    constraint.accept(TOKENIZER.encode_prompt("z")[0])
    with pytest.raises(DeviceError):
        constraint.allowed()
    assert constraint.failure is not None
    assert constraint.failure.param == "the_field"
    with pytest.raises(DeviceError):
        constraint.allowed()


def test_open_thoughts_may_be_anything_but_the_end() -> None:
    constraint = COMPILER.compile(regex_grammar("[0-9]", "p"), "open")
    assert set(range(TOKENIZER.vocab_size)) - allowed(constraint) == {0, END}
    for token in TOKENIZER.encode_prompt("hm <think> < </think>"):
        constraint.accept(token)
    assert allowed(constraint) == allowed(COMPILER.compile(regex_grammar("[0-9]", "p")))


@pytest.mark.parametrize("text", ["7", "<think>well 8</think>7", "<think></think>\n\n7"])
def test_thoughts_that_may_come(text: str) -> None:
    constraint = COMPILER.compile(regex_grammar("[0-9]", "p"), "may")
    think = TOKENIZER.id_of("<think>")
    assert think in allowed(constraint)
    for token in TOKENIZER.encode_prompt(text.replace("\n", "")):
        assert token in allowed(constraint)
        constraint.accept(token)
    assert allowed(constraint) == {0, END}


def test_text_behind_the_closing_tag_in_one_token_belongs_to_the_grammar() -> None:
    class Glued(Tokenizer):
        def __init__(self) -> None:
            raw = tiny_tokenizer()
            raw.add_tokens(["nk>7"])
            super().__init__(raw)

    tokenizer = Glued()
    glued = tokenizer.id_of("nk>7")
    assert glued is not None
    constraint = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({END})).compile(
        regex_grammar("78", "p"), "open"
    )
    for token in [*tokenizer.encode_prompt("x</thi"), glued]:
        constraint.accept(token)
    assert allowed(constraint) == set(tokenizer.encode_prompt("8"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regex_grammar("(", "regex"), "regex is malformed"),
        (lambda: regex_grammar("a(?=b)", "regex"), "look-around"),
        (lambda: lark_grammar("start: nothing", "grammar"), "grammar is malformed"),
        (lambda: json_grammar({"type": "object", "not": {}}, "schema"), "schema uses not, which cannot be enforced"),
        (lambda: json_grammar({"$ref": "#/nowhere"}, "schema"), "schema is malformed"),
        (lambda: json_grammar({"$ref": "http://example.com/x"}, "schema"), "schema is malformed"),
    ],
)
def test_what_cannot_be_enforced_is_refused(make: Callable[[], Grammar], message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        COMPILER.compile(make())
    assert raised.value.code == "bad_grammar"


def test_model_without_an_end_of_turn_is_not_constrained() -> None:
    compiler = GrammarCompiler(TOKENIZER, WIDTH, frozenset())
    with pytest.raises(RequestError, match="without an end-of-turn token"):
        compiler.compile(choice_grammar(["a"], "p"))


SCHEMA: dict[str, Any] = {
    "properties": {"a": {"$ref": "#/$defs/n"}},
    "required": ["a"],
    "$defs": {"n": {"enum": [1, 2]}},
}


def test_calls_have_valid_arguments_in_the_familys_form() -> None:
    tools: dict[str, Any] = {"f": SCHEMA, "g": {"type": "object", "additionalProperties": False}}
    for form in (HERMES, LFM2):
        grammar = calls_grammar(form, tools, parallel=True, param="tool_choice")
        call = form.begin + form.call.replace("NAME", "f").replace("ARGUMENTS", '{"a": 2}') + form.end
        other = form.begin + form.call.replace("NAME", "g").replace("ARGUMENTS", "{}") + form.end
        assert accepts(grammar, call)
        assert accepts(grammar, f"{call}\n{other}")
        assert not accepts(grammar, call.replace("2", "3"))
        assert not accepts(grammar, call.replace("f", "h", 1))
        assert not accepts(grammar, "text")
        single = calls_grammar(form, tools, parallel=False, param="tool_choice")
        assert not accepts(single, f"{call}\n{other}")


def test_control_tokens_stand_in_a_grammar_as_such() -> None:
    raw = tiny_tokenizer()
    raw.add_special_tokens(["<|tool_call_start|>", "<|tool_call_end|>"])
    tokenizer = Tokenizer(raw)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({END}))
    grammar = calls_grammar(LFM2, {"f": {}}, parallel=False, param="p")
    constraint = compiler.compile(grammar)
    assert allowed(constraint) == {tokenizer.id_of("<|tool_call_start|>")}


def test_large_and_small_schemas_share_nothing() -> None:
    schemas = [
        {"type": "object", "properties": {f"p{n}": {"type": "integer"}}, "required": [f"p{n}"]} for n in range(40)
    ]
    for n, schema in enumerate(schemas):
        assert accepts(json_grammar(schema, "p"), json.dumps({f"p{n}": n}))

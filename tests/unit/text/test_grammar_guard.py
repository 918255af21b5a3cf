"""Grammars that would take the process down or keep it busy are told, and the next one is compiled all the same."""

from typing import Any

import pytest

from npuserve.errors import RequestError
from npuserve.text.grammar import Grammar, choice_grammar, json_grammar, lark_grammar
from npuserve.text.grammar_compiler import GrammarCompiler
from npuserve.text.tokenizer import Tokenizer
from tiny_tokenizer import tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer())
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size, frozenset({2}))


def chain_of_rules(length: int) -> Grammar:
    rules = "\n".join(f"r{i}: r{i + 1}" for i in range(length))
    return lark_grammar(f'start: r0\n{rules}\nr{length}: "a"', "grammar")


def chain_of_references(length: int) -> Grammar:
    names: dict[str, Any] = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(length)}
    return json_grammar({"$ref": "#/$defs/r0", "$defs": {**names, f"r{length}": {"type": "integer"}}}, "schema")


@pytest.mark.parametrize(
    "grammar",
    [
        chain_of_rules(15_000),
        chain_of_references(6_000),
        json_grammar({"type": "integer", "multipleOf": 999_999_937}, "schema"),
    ],
)
def test_grammar_that_breaks_or_stalls_the_compiler_is_refused(grammar: Grammar) -> None:
    with pytest.raises(RequestError, match="too complex") as raised:
        COMPILER.compile(grammar)
    assert raised.value.param == grammar.param
    assert COMPILER.compile(choice_grammar(["a"], "choice")).allowed()


def test_ordinary_chains_are_compiled() -> None:
    for grammar in (chain_of_rules(200), chain_of_references(200)):
        assert COMPILER.compile(grammar).allowed()


def test_number_beyond_every_type_is_the_clients_fault() -> None:
    with pytest.raises(RequestError, match="schema"):
        COMPILER.compile(json_grammar({"type": "integer", "minimum": 10**400}, "schema"))

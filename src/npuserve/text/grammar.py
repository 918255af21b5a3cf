"""What a reply may be, as a grammar in llguidance's own notation."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from npuserve.errors import RequestError
from npuserve.text.tools.formats import ToolFormat

MAX_GRAMMAR_CHARACTERS = 256 << 10
MAX_CHOICES = 4096
_MAX_CALLS = 16

# One space, or a line break with an indentation: a model cannot write white space for ever between two tokens.
_JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"( |\n[ \t]{0,20})",
    "lenient": False,
    "coerce_one_of": False,
    "item_separator": ",",
    "key_separator": ":",
}
_COMBINED = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const", "type")
_TAG = re.compile(r"<[^<>\s]+>")


# The id of a tag that is a token of its own, which no text spells; None of what is text.
ControlId = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar still to be written out, which takes its time; `param` names the field that asked for it."""

    param: str
    build: Callable[[ControlId], str]

    def text(self, control_id: ControlId) -> str:
        """The grammar in llguidance's notation. Raises RequestError when it is malformed or too large."""
        try:
            text = self.build(control_id)
        except (ValueError, RecursionError) as error:
            message = f"{self.param} is malformed or cannot be enforced; simplify it"
            raise RequestError(message, param=self.param, code="bad_grammar") from error
        _check_size(len(text), self.param)
        return text


def json_grammar(schema: Mapping[str, Any], param: str) -> Grammar:
    """JSON that is valid against `schema`, with white space bounded between any two tokens."""
    return Grammar(
        param, lambda _: LLMatcher.grammar_from_json_schema(json.dumps(_bounded(schema), ensure_ascii=False))
    )


def regex_grammar(pattern: str, param: str) -> Grammar:
    """Text that `pattern` matches as a whole."""
    return Grammar(param, lambda _: LLMatcher.grammar_from_regex(pattern))


def lark_grammar(source: str, param: str) -> Grammar:
    """Text that a Lark grammar, or one in llama.cpp's GBNF, produces from its start. Raises RequestError."""
    _check_size(len(source), param)

    def build(_: ControlId) -> str:
        try:
            return LLMatcher.grammar_from_lark(any_to_lark(source))
        except Exception as error:  # a converter that fails on what is no GBNF in any way it likes
            message = f"{param} is neither a Lark nor a GBNF grammar"
            raise RequestError(message, param=param, code="bad_grammar") from error

    return Grammar(param, build)


def choice_grammar(choices: Sequence[str], param: str) -> Grammar:
    """One of `choices`."""
    return Grammar(param, lambda _: LLMatcher.grammar_from_lark("start: " + " | ".join(map(_quoted, choices))))


def calls_grammar(form: ToolFormat, tools: Mapping[str, Mapping[str, Any]], *, parallel: bool, param: str) -> Grammar:
    """At least one call of `tools` (name to parameters' schema), and nothing else; arguments are valid."""

    def build(control_id: ControlId) -> str:
        start = "start: call"
        if parallel and form.between is not None:
            start += f" ({_literal(form.between, control_id)} call){{0,{_MAX_CALLS - 1}}}"
        names = " | ".join(f"call_{index}" for index in range(len(tools)))
        calls = [_call(form, index, name, schema, control_id) for index, (name, schema) in enumerate(tools.items())]
        return LLMatcher.grammar_from_lark("\n".join([start, f"call: {names}", *calls]))

    return Grammar(param, build)


def _call(form: ToolFormat, index: int, name: str, schema: Mapping[str, Any], control_id: ControlId) -> str:
    begin, end = ("", "") if form.bare else (form.begin, form.end)
    before, after = form.call.replace("NAME", name, 1).split("ARGUMENTS", 1)
    parts = (
        _literal(begin + before, control_id),
        f"%json {json.dumps(_bounded(_of_object(schema)), ensure_ascii=False)}",
        _literal(after + end, control_id),
    )
    return f"call_{index}: " + " ".join(part for part in parts if part)


def _check_size(num_characters: int, param: str) -> None:
    if num_characters > MAX_GRAMMAR_CHARACTERS:
        message = f"{param} makes a grammar of {num_characters} characters; at most {MAX_GRAMMAR_CHARACTERS} are taken"
        raise RequestError(message, param=param, code="grammar_too_large")


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": _JSON_OPTIONS}


def _of_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments are an object even where the schema does not say so."""
    return schema if any(name in schema for name in _COMBINED) else {**schema, "type": "object"}


def _literal(text: str, control_id: ControlId) -> str:
    """`text` in Lark: control tokens by id, the rest quoted."""
    parts: list[str] = []
    done = 0
    for tag in _TAG.finditer(text):
        if (token := control_id(tag[0])) is not None:
            parts += [_quoted(text[done : tag.start()]), f"<[{token}]>"]
            done = tag.end()
    parts.append(_quoted(text[done:]))
    return " ".join(part for part in parts if part != '""')


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

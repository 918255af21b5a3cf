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


@dataclass(frozen=True, slots=True)
class Grammar:
    """`text` is llguidance's; `param` names the request's field that asked for it, for the errors."""

    text: str
    param: str

    def __post_init__(self) -> None:
        if len(self.text) > MAX_GRAMMAR_CHARACTERS:
            message = f"{self.param} makes a grammar of {len(self.text)} characters; at most {MAX_GRAMMAR_CHARACTERS}"
            raise RequestError(f"{message} are taken", param=self.param, code="grammar_too_large")


def json_grammar(schema: Mapping[str, Any], param: str) -> Grammar:
    """JSON that is valid against `schema`, with white space bounded between any two tokens."""
    return Grammar(LLMatcher.grammar_from_json_schema(_bounded(schema)), param)


def regex_grammar(pattern: str, param: str) -> Grammar:
    """Text that `pattern` matches as a whole."""
    return Grammar(LLMatcher.grammar_from_regex(pattern), param)


def lark_grammar(source: str, param: str) -> Grammar:
    """Text that a Lark grammar, or one in llama.cpp's GBNF, produces from its start."""
    if len(source) > MAX_GRAMMAR_CHARACTERS:
        return Grammar(source, param)
    try:
        lark = any_to_lark(source)
    except Exception as error:  # a converter that fails on what is no GBNF in any way it likes
        raise RequestError(f"{param} is neither a Lark nor a GBNF grammar", param=param, code="bad_grammar") from error
    return Grammar(LLMatcher.grammar_from_lark(lark), param)


def choice_grammar(choices: Sequence[str], param: str) -> Grammar:
    """One of `choices`."""
    return Grammar(LLMatcher.grammar_from_lark("start: " + " | ".join(map(_quoted, choices))), param)


def calls_grammar(
    form: ToolFormat,
    tools: Mapping[str, Mapping[str, Any]],
    *,
    parallel: bool,
    is_control: Callable[[str], bool],
    param: str,
) -> Grammar:
    """At least one call of `tools` (name to parameters' schema), and nothing else; arguments are valid.

    `is_control` says of a tag whether it is a token of its own rather than text.
    """
    lines = [
        "start: call" + (f" ({_literal(form.between, is_control)} call){{0,{_MAX_CALLS - 1}}}" if more else "")
        for more in (parallel and form.between is not None,)
    ]
    lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    begin, end = ("", "") if form.bare else (form.begin, form.end)
    for index, (name, schema) in enumerate(tools.items()):
        before, after = form.call.replace("NAME", name, 1).split("ARGUMENTS", 1)
        parts = (
            _literal(begin + before, is_control),
            f"%json {json.dumps(_bounded(_of_object(schema)), ensure_ascii=False)}",
            _literal(after + end, is_control),
        )
        lines.append(f"call_{index}: " + " ".join(part for part in parts if part))
    return Grammar(LLMatcher.grammar_from_lark("\n".join(lines)), param)


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": _JSON_OPTIONS}


def _of_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments are an object even where the schema does not say so."""
    return schema if any(name in schema for name in _COMBINED) else {**schema, "type": "object"}


def _literal(text: str | None, is_control: Callable[[str], bool]) -> str:
    """`text` in Lark: control tokens by name, the rest quoted."""
    parts: list[str] = []
    done = 0
    for tag in _TAG.finditer(text or ""):
        if is_control(tag[0]):
            parts += [_quoted(tag.string[done : tag.start()]), tag[0]]
            done = tag.end()
    parts.append(_quoted((text or "")[done:]))
    return " ".join(part for part in parts if part != '""')


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

"""What a request says a reply's text must be: the fields of OpenAI, SGLang, vLLM and llama.cpp."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import msgspec

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.fields import OBJECT, STRING
from npuserve.text.grammar import (
    MAX_CHOICES,
    Grammar,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)
from npuserve.text.grammar_compiler import GrammarCompiler, deep_threads
from npuserve.text.grammar_constraint import GrammarConstraint

_COMPILE_TIME_LIMIT_S = 10.0

_ANY_OBJECT = {"type": "object"}
# Field of a request -> what it holds. The same words stand in vLLM's `structured_outputs`.
_FIELDS = {
    "regex": "regex",
    "grammar": "grammar",
    "ebnf": "grammar",
    "choice": "choice",
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_STRUCTURED = ("json", "regex", "choice", "grammar")


def read_grammar(body: Mapping[str, Any]) -> Grammar | None:
    """The grammar that a reply is held to, None without one. Raises RequestError, for two of them as well."""
    asked = {name: (kind, body[name]) for name, kind in _FIELDS.items() if body.get(name) is not None}
    asked |= _structured_outputs(body)
    found = _response_format(body.get("response_format"))
    if found is not None:
        asked["response_format"] = found
    if not asked:
        return None
    if len(asked) > 1:
        message = f"{' and '.join(asked)} cannot both be enforced; give one of them"
        raise RequestError(message, param=list(asked)[1], code="invalid_value")
    ((path, (kind, value)),) = asked.items()
    return _grammar(kind, value, path)


def _structured_outputs(body: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    value = body.get("structured_outputs")
    if value is None:
        return {}
    fields.check(value, OBJECT, "structured_outputs")
    asked: dict[str, tuple[str, Any]] = {}
    for name, held in value.items():
        path = f"structured_outputs.{name[:40]}"
        if held is None or held is False:
            continue
        if name == "json_object":
            asked[path] = ("json", _ANY_OBJECT)
        elif name in _STRUCTURED:
            asked[path] = (name, held)
        else:
            message = f"{path} cannot be enforced; there are {', '.join(_STRUCTURED)} and json_object"
            raise RequestError(message, param=path, code="unsupported")
    return asked


def _response_format(value: Any) -> tuple[str, Any] | None:
    if value is None:
        return None
    fields.check(value, OBJECT, "response_format")
    kind = value.get("type")
    fields.check(kind, fields.OneOf(("text", "json_object", "json_schema")), "response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        # llama.cpp's: a schema may stand beside the type.
        schema = value.get("schema")
        return "json", _ANY_OBJECT if schema is None else schema
    described = fields.required(value, "json_schema", OBJECT, "response_format.json_schema")
    return "json", fields.required(described, "schema", OBJECT, "response_format.json_schema.schema")


def _grammar(kind: str, value: Any, path: str) -> Grammar:
    match kind:
        case "json":
            return json_grammar(_schema(value, path), path)
        case "choice":
            return choice_grammar(_choices(value, path), path)
        case "regex":
            return regex_grammar(_source(value, path), path)
        case _:
            return lark_grammar(_source(value, path), path)


def _source(value: Any, path: str) -> str:
    fields.check(value, STRING, path)
    if not value:
        raise RequestError(f"{path} is empty; it allows no reply", param=path, code="invalid_value")
    return str(value)


def _schema(value: Any, path: str) -> dict[str, Any]:
    """A schema as an object, or as its JSON text (SGLang's)."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise RequestError(f"{path} is not the JSON text of a schema", param=path, code="invalid_value") from None
    fields.check(value, OBJECT, path)
    schema: dict[str, Any] = value
    return schema


def _choices(value: Any, path: str) -> list[str]:
    fields.check(value, fields.ARRAY, path)
    if not 1 <= len(value) <= MAX_CHOICES:
        message = f"{path} has {len(value)} entries; it must have 1 to {MAX_CHOICES}"
        raise RequestError(message, param=path, code="invalid_value")
    for index, item in enumerate(value):
        fields.check(item, STRING, f"{path}[{index}]")
    return list(value)


@cache
def _compiling() -> ThreadPoolExecutor:
    """Threads for this alone: a slow grammar keeps other grammars waiting, and nothing else."""
    return deep_threads(2, "compile-grammar")


async def constrained(compiler: GrammarCompiler, grammar: Grammar, thoughts: str | None) -> GrammarConstraint:
    """`compiler.compile` off the event loop. Raises RequestError also when it takes too long."""
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(_compiling(), compiler.compile, grammar, thoughts)
    try:
        return await asyncio.wait_for(work, _COMPILE_TIME_LIMIT_S)
    except TimeoutError:
        message = f"{grammar.param} could not be compiled within {_COMPILE_TIME_LIMIT_S:g} s; simplify it"
        raise RequestError(message, param=grammar.param, code="grammar_too_complex") from None

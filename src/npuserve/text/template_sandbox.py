"""The Jinja environment that chat templates are written for, made safe."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_VALUE_CHARACTERS = 1 << 25
_WIDE_FIELD = re.compile(r"\d{5}|\*")  # a width or precision of five digits, or one taken from an argument


class TemplateRefusal(Exception):  # noqa: N818 - not a fault: the template said no
    """The template called raise_exception; the message is its own."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """What Hugging Face's apply_chat_template gives a template: whitespace control, `break` and `continue`,
    `generation` blocks, raise_exception, strftime_now and a `tojson` that leaves text readable.

    Operators that could make a huge value out of a small one are bounded.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.filters["tojson"] = _tojson

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Bound what `*`, `**` and `%` may make."""
        if operator == "**" and not (_is_small(left, 1 << 20) and _is_small(right, 64)):
            raise OverflowError("power of a large number")
        if operator == "*" and (_repeats_too_much(left, right) or _repeats_too_much(right, left)):
            raise OverflowError("repetition makes a huge value")
        if operator == "%" and isinstance(left, str) and _WIDE_FIELD.search(left):
            raise OverflowError("formatting makes a huge value")
        operation: Callable[[Any, Any], Any] = self.binop_table[operator]
        return operation(left, right)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's tokens for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _is_small(value: Any, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit


def _repeats_too_much(value: Any, times: Any) -> bool:
    if not (isinstance(value, str | list | tuple) and isinstance(times, int)):
        return False
    return len(value) * times > _MAX_VALUE_CHARACTERS


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes <, >, & and ' for HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

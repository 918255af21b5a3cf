"""The Jinja environment that chat templates are written for, made safe.

A template is a program that came with the checkpoint. Jinja's sandbox keeps it away from Python; what is added here
bounds its time (every round of a loop and every call of a macro looks at the clock) and the values it makes.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, TypeVar

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_MAX_VALUE_SIZE = 1 << 25  # characters of a string, items of a list
_MAX_INTEGER_ARGUMENT = 1 << 20
_WIDE_FIELD = re.compile(r"\d{5}|\*")  # a width or precision of five digits, or one taken from an argument


class TemplateRefusal(Exception):  # noqa: N818 - not a fault: the template said no
    """The template called raise_exception; the message is its own."""


class TemplateLimitError(Exception):
    """The template ran too long or made too large a value."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """What Hugging Face's apply_chat_template gives a template, within limits: whitespace control, `break` and
    `continue`, `generation` blocks, raise_exception, strftime_now and a `tojson` that leaves text readable.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.filters |= {name: _limited(function) for name, function in self.filters.items()}
        self.filters["tojson"] = _tojson
        self.filters[_BOUNDED] = _bounded
        self._deadline = threading.local()

    def start_clock(self, limit_s: float) -> None:
        """Give what this thread renders next `limit_s` seconds."""
        self._deadline.at_s = time.monotonic() + limit_s

    def tick(self) -> None:
        """Raise TemplateLimitError when this thread's time is over."""
        if time.monotonic() > self._deadline.at_s:
            raise TemplateLimitError("it ran too long")

    def joined(self, *values: Any) -> str:
        """The `~` operator."""
        if sum(map(_size, values)) > _MAX_VALUE_SIZE:
            raise TemplateLimitError("an operand of ~ is too large")
        return "".join(map(str, values))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        limited: nodes.Template = _Limits().visit(template)
        return limited

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method or macro."""
        _check_arguments(args, kwargs)
        return _bounded(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Bound what `+`, `*`, `**` and `%` make before they make it."""
        match operator:
            case "+":
                too_large = _size(left) + _size(right) > _MAX_VALUE_SIZE
            case "*":
                too_large = _repeats_too_much(left, right) or _repeats_too_much(right, left)
            case "**":
                too_large = not (_is_small(left, 1 << 20) and _is_small(right, 64))
            case _:
                too_large = isinstance(left, str) and _WIDE_FIELD.search(left) is not None
        if too_large:
            raise TemplateLimitError(f"an operand of {operator} is too large")
        operation: Callable[[Any, Any], Any] = self.binop_table[operator]
        return operation(left, right)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's tokens for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_BOUNDED = "npuserve_bounded"
_Block = TypeVar("_Block", nodes.For, nodes.Macro, nodes.CallBlock)


class _Limits(NodeTransformer):
    """Puts the checks of the sandbox where Jinja itself has no hook for them."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - the base class's naming
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802
        return self._ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:  # noqa: N802
        return self._ticking(node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:  # noqa: N802
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, _BOUNDED, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return _environment_call("joined", node.nodes, node.lineno)

    def _ticking(self, node: _Block) -> _Block:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_environment_call("tick", [], node.lineno), lineno=node.lineno))
        return node


def _environment_call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method, lineno=line), arguments, [], None, None, lineno=line)


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that takes no huge number and makes no huge value."""

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(args, kwargs)
        return _bounded(function(*args, **kwargs))

    return limited


def _check_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a large number: it could be a width or a count."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > _MAX_INTEGER_ARGUMENT:
            raise TemplateLimitError("a number given to a function is too large")


def _bounded(value: Any) -> Any:
    if _size(value) > _MAX_VALUE_SIZE:
        raise TemplateLimitError("a value is too large")
    return value


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _is_small(value: Any, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit


def _repeats_too_much(value: Any, times: Any) -> bool:
    return isinstance(times, int) and _size(value) * times > _MAX_VALUE_SIZE


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

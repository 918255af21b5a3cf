"""Checked reading of a request's fields: type and range first, then the value.

Every message names the field, what it may be and what it was; `param` is its path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from npuserve.errors import RequestError


class Kind(Protocol):
    """A kind of value: says whether `value` is of it, and how to call what it accepts."""

    @property
    def accepts(self) -> str: ...

    def matches(self, value: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class Real:
    """A number from `least` to `most`; `open_below` excludes `least` itself."""

    least: float
    most: float
    open_below: bool = False

    @property
    def accepts(self) -> str:
        low = f"above {self.least:g} and at most" if self.open_below else f"from {self.least:g} to"
        return f"a number {low} {self.most:g}"

    def matches(self, value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return self.least < value <= self.most if self.open_below else self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `least` to `most`, without end where that is None. True and 1.0 are none."""

    least: int
    most: int | None = None

    @property
    def accepts(self) -> str:
        return (
            f"an integer of {self.least} or more"
            if self.most is None
            else f"an integer from {self.least} to {self.most}"
        )

    def matches(self, value: Any) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return value >= self.least and (self.most is None or value <= self.most)


@dataclass(frozen=True, slots=True)
class OfType:
    """Any value of one JSON type."""

    type: type
    accepts: str

    def matches(self, value: Any) -> bool:
        return isinstance(value, self.type)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def accepts(self) -> str:
        return "one of " + ", ".join(self.words)

    def matches(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.words


BOOLEAN = OfType(bool, "true or false")
STRING = OfType(str, "a string")
ARRAY = OfType(list, "a list")
OBJECT = OfType(dict, "an object")


def check(value: Any, kind: Kind, path: str) -> None:
    """Raise RequestError unless `value` is of `kind`."""
    if not kind.matches(value):
        raise RequestError(f"{path} must be {kind.accepts}, not {shown(value)}", param=path, code="invalid_value")


def read(body: Mapping[str, Any], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The fields of `body` that `kinds` names, each checked; null is the same as absent."""
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = body.get(name)
        if value is not None:
            check(value, kind, name)
            values[name] = value
    return values


def required(body: Mapping[str, Any], name: str, kind: Kind, path: str | None = None) -> Any:
    """The field `name`, which must be there."""
    path = path or name
    value = body.get(name)
    if value is None:
        raise RequestError(f"{path} is missing; it must be {kind.accepts}", param=path, code="missing_field")
    check(value, kind, path)
    return value


def read_list(value: Any, kind: Kind, path: str, *, most: int) -> Sequence[Any]:
    """A single value of `kind`, or a list of up to `most`, as a list."""
    if not isinstance(value, list):
        if not kind.matches(value):
            message = f"{path} must be {kind.accepts} or a list of up to {most} such, not {shown(value)}"
            raise RequestError(message, param=path, code="invalid_value")
        return [value]
    if len(value) > most:
        raise RequestError(
            f"{path} has {len(value)} entries; at most {most} are taken", param=path, code="invalid_value"
        )
    for index, item in enumerate(value):
        check(item, kind, f"{path}[{index}]")
    return value


def shown(value: Any) -> str:
    """A short picture of a wrong value: the value itself where it is small, else its JSON type."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) >= 1 << 100:
            return "a huge integer"
        case int() | float():
            return str(value)
        case str():
            return f"'{value}'" if len(value) <= 40 else f"a string of {len(value)} characters"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"

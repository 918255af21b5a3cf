"""From the text of a flag, a variable or a file's key to its value; both serve commands read theirs here."""

from collections.abc import Sequence
from typing import Any

from npuserve.errors import ConfigError


def separated(texts: str | Sequence[str]) -> tuple[str, ...]:
    """The values of an option that may be repeated, each text one value or several between commas."""
    joined = texts if isinstance(texts, str) else ",".join(texts)
    return tuple(value.strip() for value in joined.split(",") if value.strip())


def converted(name: str, text: Any, kind: Any) -> Any:
    """`text` as an int or a finite float where that is its kind, else as it is. ConfigError calls it `name`."""
    if kind not in (int, float):
        return text
    try:
        value = kind(text)
    except ValueError:
        raise ConfigError(f"{name} {text} is not {'an integer' if kind is int else 'a number'}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{name} {text} is not a number")
    return value

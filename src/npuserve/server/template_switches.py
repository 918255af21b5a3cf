"""The switches of a chat template that a request may set."""

from collections.abc import Mapping
from typing import Any

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.fields import BOOLEAN, OBJECT
from npuserve.text.chat_template import RESERVED_NAMES, ChatTemplate

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_NO_THINKING = ("none", "minimal")


def read_switches(body: Mapping[str, Any], template: ChatTemplate, *, think: bool) -> dict[str, Any]:
    """Values for the template; `think` is the server's default for thinking.

    chat_template_kwargs win over enable_thinking, that over reasoning_effort, that over `think`. A template that
    knows no reasoning_effort is told whether to think: not for none and minimal. Raises RequestError.
    """
    values = fields.read(
        body,
        {"chat_template_kwargs": OBJECT, "enable_thinking": BOOLEAN, "reasoning_effort": fields.OneOf(_EFFORTS)},
    )
    given = values.get("chat_template_kwargs", {})
    _check_names(given, template)
    thinking = think
    switches: dict[str, Any] = {}
    effort = values.get("reasoning_effort")
    if effort is not None:
        thinking = effort not in _NO_THINKING
        switches["reasoning_effort"] = effort
    thinking = values.get("enable_thinking", thinking)
    return {"enable_thinking": thinking, "thinking": thinking, **switches, **given}


def _check_names(given: Mapping[str, Any], template: ChatTemplate) -> None:
    for name in given:
        path = f"chat_template_kwargs.{name[:40]}"
        if name in RESERVED_NAMES:
            message = f"{path} is set by the server and cannot be given"
        elif name not in template.switches:
            message = f"{path} is not a switch of this model's template; it has {', '.join(sorted(template.switches))}"
        else:
            continue
        raise RequestError(message, param=path, code="invalid_value")

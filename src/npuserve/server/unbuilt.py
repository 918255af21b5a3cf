"""Fields whose part is not built yet: refused by name, since a reply that ignored them would be wrong."""

from collections.abc import Callable, Mapping
from typing import Any

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.errors import UnbuiltFieldError
from npuserve.server.fields import ARRAY, BOOLEAN, OBJECT, Integer

# What each field may be without asking for anything: only other values are refused.
_HARMLESS: dict[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "best_of": lambda value: value == 1,
    "top_logprobs": lambda value: value == 0,
    "suffix": lambda value: value == "",
    "functions": lambda value: value == [],
    "modalities": lambda value: value == ["text"],
    "use_beam_search": lambda value: value is False,
    "continue_final_message": lambda value: value is False,
    "return_token_ids": lambda value: value is False,
}
_ALWAYS = (
    *("regex", "grammar", "choice", "json_schema", "ebnf", "structural_tag", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("prompt_logprobs", "audio"),
)


def refuse_unbuilt(body: Mapping[str, Any], *, chat: bool) -> None:
    """Raise RequestError for a malformed field, UnbuiltFieldError for one that asks for what is not there."""
    _refuse_logprobs(body, chat=chat)
    _check_best_of(body)
    for name, harmless in _HARMLESS.items():
        value = body.get(name)
        if value is not None and not harmless(value):
            raise UnbuiltFieldError(name)
    for name in _ALWAYS:
        if body.get(name) is not None:
            raise UnbuiltFieldError(name)
    _refuse_response_format(body.get("response_format"))
    _refuse_tools(body)


def _refuse_logprobs(body: Mapping[str, Any], *, chat: bool) -> None:
    values = fields.read(body, {"logprobs": BOOLEAN if chat else Integer(0, 20), "top_logprobs": Integer(0, 20)})
    asked = values.get("logprobs", False)
    if asked is not False:
        raise UnbuiltFieldError("logprobs")


def _check_best_of(body: Mapping[str, Any]) -> None:
    values = fields.read(body, {"n": Integer(1, 16), "best_of": Integer(1, 16)})
    num_choices, best_of = values.get("n", 1), values.get("best_of")
    if best_of is not None and best_of < num_choices:
        message = f"best_of is {best_of}; it must be at least n, which is {num_choices}"
        raise RequestError(message, param="best_of", code="invalid_value")


def _refuse_response_format(value: Any) -> None:
    if value is None:
        return
    fields.check(value, OBJECT, "response_format")
    kind = value.get("type")
    fields.check(kind, fields.OneOf(("text", "json_object", "json_schema")), "response_format.type")
    if kind != "text":
        raise UnbuiltFieldError("response_format", f"response_format {kind}")


def _refuse_tools(body: Mapping[str, Any]) -> None:
    values = fields.read(body, {"tools": ARRAY, "parallel_tool_calls": BOOLEAN})
    choice = body.get("tool_choice")
    if choice is not None and not isinstance(choice, dict):
        fields.check(choice, fields.OneOf(("none", "auto", "required")), "tool_choice")
    if isinstance(choice, dict) or choice == "required":
        raise UnbuiltFieldError("tool_choice")
    if values.get("tools") and choice != "none":
        raise UnbuiltFieldError("tools")
    if body.get("function_call") not in (None, "none", "auto"):
        raise UnbuiltFieldError("function_call")

"""Fields whose part is not built yet: refused by name, since a reply that ignored them would be wrong."""

from collections.abc import Callable, Mapping
from typing import Any

from npuserve.server.errors import UnbuiltFieldError
from npuserve.server.tools import read_tools

# What each field may be without asking for anything: only other values are refused.
_HARMLESS: dict[str, Callable[[Any], bool]] = {
    "suffix": lambda value: value == "",
    "functions": lambda value: value == [],
    "function_call": lambda value: value in ("none", "auto"),
    "modalities": lambda value: value == ["text"],
    "use_beam_search": lambda value: value is False,
    "add_generation_prompt": lambda value: value is True,
    "continue_final_message": lambda value: value is False,
    "return_token_ids": lambda value: value is False,
    "mirostat": lambda value: value == 0,
    "typical_p": lambda value: value == 1,
    "top_a": lambda value: value == 0,
    "dry_multiplier": lambda value: value == 0,
    "xtc_probability": lambda value: value == 0,
    "logits_processors": lambda value: value == [],
}
_ALWAYS = (
    "allowed_token_ids",
    "audio",
    "bad_words",
    "chat_template",
    "custom_logit_processor",
    "documents",
    "lora_path",
    "prompt_embeds",
    "prompt_logprobs",
    "structural_tag",
    "truncate_prompt_tokens",
    "web_search_options",
)


def refuse_unbuilt(body: Mapping[str, Any], *, chat: bool) -> None:
    """Raise UnbuiltFieldError for a field that asks for what is not there."""
    for name, harmless in _HARMLESS.items():
        value = body.get(name)
        if value is not None and not harmless(value):
            raise UnbuiltFieldError(name)
    for name in _ALWAYS:
        if body.get(name) is not None:
            raise UnbuiltFieldError(name)
    if chat:
        _refuse_chat_ranking(body)
    elif read_tools(body) is not None:
        raise UnbuiltFieldError("tools", "tools in a text completion")


def _refuse_chat_ranking(body: Mapping[str, Any]) -> None:
    best_of = body.get("best_of")
    if best_of is not None and best_of != (body.get("n") or 1):
        raise UnbuiltFieldError("best_of", "best_of in a chat")

"""POST /tokenize, /detokenize and /apply-template: the model's text pipeline without the model.

Fields and replies are those of llama.cpp's server (content, with_pieces) and of vLLM's (prompt, return_token_strs).
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.body import read_object
from npuserve.server.fields import ARRAY, BOOLEAN, STRING, Integer, Kind
from npuserve.server.generation import encoded
from npuserve.server.json_reply import json_reply
from npuserve.server.messages import read_messages
from npuserve.server.state import ServedModel, ServerState
from npuserve.server.template_switches import read_switches
from npuserve.text.detokenizer import Detokenizer

TOKENIZE_FIELDS: dict[str, Kind] = {
    "model": STRING,
    "content": STRING,
    "prompt": STRING,
    "messages": ARRAY,
    "add_special": BOOLEAN,
    "add_special_tokens": BOOLEAN,
    "parse_special": BOOLEAN,
    "with_pieces": BOOLEAN,
    "return_token_strs": BOOLEAN,
}
DETOKENIZE_FIELDS: dict[str, Kind] = {"model": STRING, "tokens": ARRAY, "skip_special_tokens": BOOLEAN}
TEMPLATE_FIELDS: dict[str, Kind] = {"model": STRING, "messages": ARRAY, "add_generation_prompt": BOOLEAN}
_LONG = 4_000


async def tokenize(request: Request) -> Response:
    """Ids of a text or of a chat, with their pieces on request."""
    state: ServerState = request.app.state.server
    model = state.model
    body = await read_object(request)
    values = fields.read(body, TOKENIZE_FIELDS)
    ids = await _ids(model, body, values)
    reply: dict[str, Any] = {"count": len(ids), "max_model_len": model.context_length, "tokens": ids}
    pieces = [model.tokenizer.token_bytes[token] for token in ids]
    if values.get("with_pieces", False):
        reply["tokens"] = [{"id": token, "piece": _piece(piece)} for token, piece in zip(ids, pieces, strict=True)]
    if values.get("return_token_strs", False):
        reply["token_strs"] = [piece.decode("utf-8", "replace") for piece in pieces]
    return json_reply(reply)


async def _ids(model: ServedModel, body: dict[str, Any], values: dict[str, Any]) -> tuple[int, ...]:
    given = [name for name in ("content", "prompt", "messages") if name in values]
    if len(given) != 1:
        message = f"one of content, prompt and messages is needed, not {' and '.join(given) or 'none'}"
        raise RequestError(message, param="content", code="invalid_value")
    if given == ["messages"]:
        return await _chat_ids(model, body)
    text = values[given[0]]
    special = values.get("add_special", values.get("add_special_tokens", given == ["prompt"]))
    return await encoded(model, len(text), _encoder(model, text, special=special, parse=values.get("parse_special")))


def _encoder(model: ServedModel, text: str, *, special: bool, parse: bool | None) -> Callable[[], list[int]]:
    tokenizer = model.tokenizer
    if parse is False:
        return lambda: tokenizer.encode_plain(text)
    if special:
        return lambda: tokenizer.encode_prompt(text)
    return lambda: tokenizer.encode_rendered(text, tokenizer.shield())


async def _chat_ids(model: ServedModel, body: dict[str, Any]) -> tuple[int, ...]:
    messages = read_messages(body)
    switches = read_switches(body, model.template, think=model.think)
    shield = model.tokenizer.shield()

    def encode() -> list[int]:
        rendered = model.template.render(shield.hide(messages), switches=shield.hide(switches))
        return model.tokenizer.encode_rendered(rendered, shield)

    return await encoded(model, _num_characters(messages), encode)


def _num_characters(messages: list[dict[str, Any]]) -> int:
    return sum(len(message["content"] or "") for message in messages)


def _piece(piece: bytes) -> str | list[int]:
    """Text where it is text, else the bytes: a token may be a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(request: Request) -> Response:
    """The text of some ids; control tokens are written out unless `skip_special_tokens`."""
    state: ServerState = request.app.state.server
    model = state.model
    body = await read_object(request)
    values = fields.read(body, DETOKENIZE_FIELDS)
    tokens = fields.required(body, "tokens", ARRAY)
    most = model.context_length
    if len(tokens) > most:
        raise RequestError(f"tokens has {len(tokens)} entries; at most {most} are taken", param="tokens")
    for index, token in enumerate(tokens):
        fields.check(token, Integer(0, model.vocab_size - 1), f"tokens[{index}]")
    skipped = model.tokenizer.special_ids if values.get("skip_special_tokens", False) else frozenset()
    text = Detokenizer(model.tokenizer.token_bytes, skipped=skipped).whole(tokens)
    return json_reply({"content": text, "prompt": text})


async def apply_template(request: Request) -> Response:
    """The prompt that the model's template makes of a chat."""
    state: ServerState = request.app.state.server
    model = state.model
    body = await read_object(request)
    values = fields.read(body, TEMPLATE_FIELDS)
    messages = read_messages(body)
    switches = read_switches(body, model.template, think=model.think)

    def render() -> str:
        return model.template.render(
            messages, switches=switches, add_generation_prompt=values.get("add_generation_prompt", True)
        )

    text = await asyncio.to_thread(render) if _num_characters(messages) > _LONG else render()
    return json_reply({"prompt": text})

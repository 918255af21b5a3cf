"""POST /v1/chat/completions."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.body import read_object
from npuserve.server.chat_turn import ChatTurn, chat_choices
from npuserve.server.fields import BOOLEAN, STRING, Integer, Kind
from npuserve.server.frames import ChatFrames
from npuserve.server.generation import respond
from npuserve.server.keys import cache_salt_of
from npuserve.server.messages import read_messages
from npuserve.server.reply import Choice, Reply
from npuserve.server.sampling import Generation, read_generation
from npuserve.server.state import ServedModel, ServerState
from npuserve.server.structured import read_grammar
from npuserve.server.template_switches import read_switches
from npuserve.server.tools import read_tools
from npuserve.server.unbuilt import refuse_unbuilt

CHAT_FIELDS: dict[str, Kind] = {
    "model": STRING,
    "max_tokens": Integer(1),
    "max_completion_tokens": Integer(1),
    "logprobs": BOOLEAN,
    "top_logprobs": Integer(0, 20),
    "separate_reasoning": BOOLEAN,
}


async def chat_completions(request: Request) -> Response:
    """One assistant turn, streamed or whole."""
    state: ServerState = request.app.state.server
    model = state.model
    generation, choices = await read_chat(model, await read_object(request))
    reply = Reply(state.engine, state.router, "chatcmpl", choices, cache_salt_of(request, generation.cache_salt))
    frames = ChatFrames(reply, model.name, model.tokenizer.token_bytes, include_usage=generation.include_usage)
    return await respond(request, reply, frames, stream=generation.stream)


async def read_chat(model: ServedModel, body: Mapping[str, Any]) -> tuple[Generation, list[Choice]]:
    """What the body of a chat request asks for, ready to run. Raises RequestError."""
    own = fields.read(body, CHAT_FIELDS)
    generation = read_generation(
        body,
        model.defaults,
        max_tokens=own.get("max_completion_tokens", own.get("max_tokens")),
        vocab_size=model.vocab_size,
        end_ids=model.end_ids,
    )
    turn = ChatTurn(
        read_messages(body),
        read_switches(body, model.template, think=model.think),
        read_tools(body),
        read_grammar(body),
        _num_logprobs(own),
        own.get("separate_reasoning", True),
    )
    refuse_unbuilt(body, chat=True)
    return generation, await chat_choices(model, generation, turn)


def _num_logprobs(own: Mapping[str, Any]) -> int | None:
    """How many likely tokens stand beside each one; None when no log probabilities are wanted. Raises RequestError."""
    num_top: int = own.get("top_logprobs", 0)
    if own.get("logprobs", False):
        return num_top
    if num_top:
        message = f"top_logprobs is {num_top}, but logprobs is not true; set both"
        raise RequestError(message, param="top_logprobs", code="invalid_value")
    return None

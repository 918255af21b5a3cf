"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import RequestError
from npuserve.server.anthropic_frames import AnthropicFrames
from npuserve.server.anthropic_input import chat_body, told_in_own_names
from npuserve.server.body import read_object
from npuserve.server.chat import read_chat
from npuserve.server.generation import respond
from npuserve.server.json_reply import json_reply
from npuserve.server.keys import cache_salt_of
from npuserve.server.reply import Choice, Reply
from npuserve.server.sampling import Generation
from npuserve.server.state import ServedModel, ServerState


async def messages(request: Request) -> Response:
    """One message of the assistant, streamed as its sequence of events or whole."""
    state: ServerState = request.app.state.server
    generation, choices = await _read(state.model, chat_body(await read_object(request)))
    reply = Reply(state.engine, state.router, "msg", choices, cache_salt_of(request, generation.cache_salt))
    return await respond(request, reply, AnthropicFrames(reply, state.model.name), stream=generation.stream)


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of the same request would have."""
    state: ServerState = request.app.state.server
    _, choices = await _read(state.model, chat_body(await read_object(request), counting=True))
    return json_reply({"input_tokens": len(choices[0].prompt_ids)})


async def _read(model: ServedModel, chat: dict[str, Any]) -> tuple[Generation, list[Choice]]:
    try:
        return await read_chat(model, chat)
    except RequestError as error:
        raise told_in_own_names(error) from error

"""POST /v1/chat/completions."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve.server import fields
from npuserve.server.body import read_object
from npuserve.server.fields import STRING, Integer, Kind
from npuserve.server.frames import ChatFrames
from npuserve.server.generation import encoded, make_choice, respond
from npuserve.server.keys import cache_salt_of
from npuserve.server.messages import read_messages
from npuserve.server.reply import Reply
from npuserve.server.sampling import read_generation
from npuserve.server.state import ServedModel, ServerState
from npuserve.server.template_switches import read_switches
from npuserve.server.unbuilt import refuse_unbuilt

_OWN_FIELDS: dict[str, Kind] = {"model": STRING, "max_tokens": Integer(1), "max_completion_tokens": Integer(1)}


async def chat_completions(request: Request) -> Response:
    """One assistant turn, streamed or whole."""
    state: ServerState = request.app.state.server
    model = state.model
    body = await read_object(request)
    own = fields.read(body, _OWN_FIELDS)
    generation = read_generation(
        body,
        model.defaults,
        max_tokens=own.get("max_completion_tokens", own.get("max_tokens")),
        vocab_size=model.vocab_size,
        end_ids=model.end_ids,
    )
    messages = read_messages(body)
    switches = read_switches(body, model.template, think=model.think)
    refuse_unbuilt(body, chat=True)
    size = sum(len(message["content"]) for message in messages)
    prompt_ids = await encoded(model, size, lambda: _encode(model, messages, switches))
    choice = make_choice(model, generation, 0, prompt_ids, chat=True)
    reply = Reply(state.engine, state.router, "chatcmpl", [choice], cache_salt_of(request, generation.cache_salt))
    frames = ChatFrames(reply, model.name, include_usage=generation.include_usage)
    return await respond(request, reply, frames, stream=generation.stream)


def _encode(model: ServedModel, messages: list[dict[str, Any]], switches: Mapping[str, Any]) -> list[int]:
    shield = model.tokenizer.shield()
    rendered = model.template.render(shield.hide(messages), switches=shield.hide(dict(switches)))
    return model.tokenizer.encode_rendered(rendered, shield)

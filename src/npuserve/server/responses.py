"""POST /v1/responses: OpenAI's Responses API, without memory of earlier responses."""

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import RequestError
from npuserve.server.body import read_object
from npuserve.server.chat import read_chat
from npuserve.server.generation import respond
from npuserve.server.keys import cache_salt_of
from npuserve.server.reply import Reply
from npuserve.server.responses_frames import ResponsesFrames
from npuserve.server.responses_input import chat_body, told_in_own_names
from npuserve.server.state import ServerState


async def responses(request: Request) -> Response:
    """One response, streamed as its sequence of events or whole."""
    state: ServerState = request.app.state.server
    model = state.model
    body = await read_object(request)
    chat = chat_body(body)
    try:
        generation, choices = await read_chat(model, chat)
    except RequestError as error:
        raise told_in_own_names(error, body) from error
    reply = Reply(state.engine, state.router, "resp", choices, cache_salt_of(request, generation.cache_salt))
    frames = ResponsesFrames(reply, model.name, model.tokenizer.token_bytes, body, generation.sampling)
    return await respond(request, reply, frames, stream=generation.stream)

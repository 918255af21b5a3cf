"""What chat and text completions share: from checked fields and prompt ids to a running reply."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import ContextLengthError
from npuserve.server.frames import Frames
from npuserve.server.reply import Choice, Reply
from npuserve.server.sampling import Generation
from npuserve.server.sse import EventStream, whole_reply
from npuserve.server.state import ServedModel
from npuserve.text.detokenizer import Detokenizer
from npuserve.text.pipeline import Pipeline
from npuserve.text.stop_strings import StopStrings

# Text longer than this is tokenized in a thread, so that other streams go on meanwhile.
_LONG_TEXT_CHARACTERS = 20_000


async def encoded(size: int, encode: Callable[[], list[int]]) -> tuple[int, ...]:
    """The ids of a text of about `size` characters."""
    ids = await asyncio.to_thread(encode) if size > _LONG_TEXT_CHARACTERS else encode()
    return tuple(ids)


def make_choice(
    model: ServedModel, generation: Generation, index: int, prompt_ids: tuple[int, ...], *, lead: str = "", chat: bool
) -> Choice:
    """A choice ready to run, its length limited to what the prompt leaves. Raises ContextLengthError."""
    room = model.context_length - len(prompt_ids)
    if room < min(1, generation.sampling.max_tokens):
        raise ContextLengthError(len(prompt_ids), model.context_length)
    text = generation.text
    table = model.tokenizer.token_bytes
    detokenizer = Detokenizer(
        table,
        skipped=model.tokenizer.special_ids if text.skip_special_tokens else frozenset(),
        strip_leading_space=chat and table.strips_leading_space,
    )
    stops = StopStrings(text.stop_strings, include=text.include_stop) if text.stop_strings else None
    sampling = replace(generation.sampling, max_tokens=min(generation.sampling.max_tokens, room))
    return Choice(index, prompt_ids, sampling, Pipeline(detokenizer, stops, min_tokens=text.min_tokens), lead)


async def respond(request: Request, reply: Reply, frames: Frames, *, stream: bool) -> Response:
    """Start `reply` and answer with it. Raises what the engine refuses it with."""
    reply.start()
    return EventStream(reply, frames) if stream else await whole_reply(request, reply, frames)

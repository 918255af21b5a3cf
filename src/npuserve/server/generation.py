"""What chat and text completions share: from checked fields and prompt ids to a running reply."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import ContextLengthError, RequestError
from npuserve.server.frames import Frames
from npuserve.server.reply import Choice, Reply
from npuserve.server.sampling import Generation
from npuserve.server.sse import EventStream, whole_reply
from npuserve.server.state import ServedModel
from npuserve.text.detokenizer import Detokenizer
from npuserve.text.pipeline import Pipeline
from npuserve.text.stop_strings import StopStrings

# Text longer than this takes some milliseconds to tokenize: it is done in a thread, so that other streams go on.
_LONG_TEXT_CHARACTERS = 4_000
# No vocabulary gets more out of its tokens, on average, than this.
_MOST_CHARACTERS_PER_TOKEN = 256


async def encoded(model: ServedModel, num_characters: int, encode: Callable[[], list[int]]) -> tuple[int, ...]:
    """The ids that `encode` makes of a text; one that cannot fit the context is refused without counting its tokens."""
    if num_characters > model.context_length * _MOST_CHARACTERS_PER_TOKEN:
        raise RequestError(
            f"the prompt has {num_characters} characters, which do not fit a context of {model.context_length}"
            " tokens; shorten it",
            code="context_length_exceeded",
        )
    if num_characters > _LONG_TEXT_CHARACTERS:
        return tuple(await asyncio.to_thread(encode))
    return tuple(encode())


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

"""What chat and text completions share: from checked fields and prompt ids to a running reply."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import ContextLengthError, RequestError
from npuserve.server.frames import Frames
from npuserve.server.reply import Choice, Reply
from npuserve.server.sampling import Generation
from npuserve.server.sse import EventStream, whole_reply
from npuserve.server.state import ServedModel
from npuserve.server.structured import constrained
from npuserve.server.tools import ToolUse
from npuserve.text.detokenizer import Detokenizer
from npuserve.text.grammar import Grammar
from npuserve.text.pipeline import Pipeline
from npuserve.text.reasoning import CLOSE_TAG, OPEN_TAG, ReasoningSplitter
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


@dataclass(frozen=True, slots=True)
class Features:
    """What the choices of a prompt do beside giving text.

    `num_logprobs`, `prompt_logprobs` and `entry_at_end` are as in Choice. With `splits_reasoning` thoughts are told
    from the reply; they are open at its beginning when the prompt ends inside them, and a grammar waits for their end
    then, or when the model `may_reason` and does.
    """

    num_logprobs: int | None = None
    prompt_logprobs: bool = False
    entry_at_end: bool = False
    grammar: Grammar | None = None
    tools: ToolUse | None = None
    splits_reasoning: bool = False
    reasoning_is_open: bool = False
    may_reason: bool = False

    @property
    def thoughts(self) -> str | None:
        """As GrammarCompiler.compile takes it."""
        return "open" if self.reasoning_is_open else "may" if self.may_reason else None


PLAIN = Features()


async def make_choices(
    model: ServedModel,
    generation: Generation,
    prompt_ids: tuple[int, ...],
    features: Features = PLAIN,
    *,
    prompt: int = 0,
    lead: str = "",
    chat: bool,
) -> list[Choice]:
    """The choices of prompt number `prompt`, ready to run; the seed of each is one more than that of the one before.

    Their length is limited to what the prompt leaves. Raises ContextLengthError, RequestError for a wrong grammar.
    """
    room = model.context_length - len(prompt_ids)
    if room < min(1, generation.sampling.max_tokens):
        raise ContextLengthError(len(prompt_ids), model.context_length)
    sampling, only_prompt = generation.sampling, False
    if sampling.max_tokens == 0 and features.prompt_logprobs:
        sampling, only_prompt = replace(sampling, max_tokens=1), True
    if features.grammar is not None:
        if model.unconstrained is not None:
            param = features.grammar.param
            raise RequestError(f"{param} cannot be enforced: {model.unconstrained}", param=param, code="unsupported")
        # What is complete must be able to end, whatever the client says about the end of the turn.
        sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids | model.end_ids)
    choices: list[Choice] = []
    for number in range(generation.best_of):
        seed = (sampling.seed + number) & ((1 << 64) - 1)
        choice = Choice(
            prompt * generation.best_of + number,
            prompt_ids,
            replace(sampling, max_tokens=min(sampling.max_tokens, room), seed=seed),
            _pipeline(model, generation, features, chat=chat),
            lead,
            prompt=prompt,
            num_logprobs=features.num_logprobs,
            prompt_logprobs=features.prompt_logprobs,
            entry_at_end=features.entry_at_end,
            only_prompt=only_prompt,
        )
        if features.grammar is not None:
            choice.constraint = await constrained(model.grammars, features.grammar, features.thoughts)
        choices.append(choice)
    return choices


def _pipeline(model: ServedModel, generation: Generation, features: Features, *, chat: bool) -> Pipeline:
    text, tokenizer, tools = generation.text, model.tokenizer, features.tools
    table = tokenizer.token_bytes
    tags = (*(model.tool_format.tags if tools else ()), *((OPEN_TAG, CLOSE_TAG) if features.splits_reasoning else ()))
    needed = {tokenizer.id_of(tag) for tag in tags}
    detokenizer = Detokenizer(
        table,
        skipped=tokenizer.special_ids - needed if text.skip_special_tokens else frozenset(),
        strip_leading_space=chat and table.strips_leading_space,
    )
    return Pipeline(
        detokenizer,
        StopStrings(text.stop_strings, include=text.include_stop) if text.stop_strings else None,
        min_tokens=text.min_tokens,
        reasoning=ReasoningSplitter(opened=features.reasoning_is_open) if features.splits_reasoning else None,
        tools=model.tool_format.parser(tools.schemas, parallel=tools.parallel) if tools else None,
    )


async def respond(request: Request, reply: Reply, frames: Frames, *, stream: bool) -> Response:
    """Start `reply` and answer with it. Raises what the engine refuses it with."""
    reply.start()
    return EventStream(reply, frames) if stream else await whole_reply(request, reply, frames)

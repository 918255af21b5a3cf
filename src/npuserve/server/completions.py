"""POST /v1/completions."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import ContextLengthError, RequestError
from npuserve.server import fields
from npuserve.server.body import read_object
from npuserve.server.fields import BOOLEAN, STRING, Integer, Kind
from npuserve.server.frames import CompletionFrames
from npuserve.server.generation import Features, encoded, make_choices, respond
from npuserve.server.keys import cache_salt_of
from npuserve.server.reply import Choice, Reply
from npuserve.server.sampling import Generation, read_generation
from npuserve.server.state import ServedModel, ServerState
from npuserve.server.structured import read_grammar
from npuserve.server.unbuilt import refuse_unbuilt
from npuserve.text.detokenizer import Detokenizer
from npuserve.text.grammar import Grammar

COMPLETION_FIELDS: dict[str, Kind] = {
    "model": STRING,
    "max_tokens": Integer(0),
    "echo": BOOLEAN,
    "suffix": STRING,
    "logprobs": Integer(0, 20),
}
_DEFAULT_MAX_TOKENS = 16  # OpenAI's
_MAX_PROMPTS = 128
_MAX_CHOICES = 256

Prompt = str | list[int]


async def completions(request: Request) -> Response:
    """Continuations of one or several prompts, streamed or whole."""
    state: ServerState = request.app.state.server
    model = state.model
    body = await read_object(request)
    own = fields.read(body, COMPLETION_FIELDS)
    echo = own.get("echo", False)
    generation = read_generation(
        body,
        model.defaults,
        max_tokens=_max_tokens(own, echo=echo),
        vocab_size=model.vocab_size,
        end_ids=model.end_ids,
    )
    prompts = read_prompts(body, model)
    refuse_unbuilt(body, chat=False)
    _check_choices(len(prompts), generation)
    features = _features(own, generation, read_grammar(body), echo=echo)
    choices: list[Choice] = []
    for number, prompt in enumerate(prompts):
        choices += await _choices(model, generation, features, number, prompt, echo=echo)
    reply = Reply(state.engine, state.router, "cmpl", choices, cache_salt_of(request, generation.cache_salt))
    frames = CompletionFrames(
        reply,
        model.name,
        model.tokenizer.token_bytes,
        include_usage=generation.include_usage,
        logprobs="logprobs" in own,
        echo=echo,
        num_kept=generation.num_choices if generation.best_of > generation.num_choices else None,
    )
    return await respond(request, reply, frames, stream=generation.stream)


def read_prompts(body: Mapping[str, Any], model: ServedModel) -> list[Prompt]:
    """The prompts of a request: a string, token ids, or a list of either. Raises RequestError."""
    prompt = body.get("prompt")
    accepts = "a string, a list of token ids, or a list of strings or of such lists"
    if not isinstance(prompt, str | list):
        code = "missing_field" if prompt is None else "invalid_value"
        message = f"prompt must be {accepts}, not {fields.shown(prompt)}"
        raise RequestError(message, param="prompt", code=code)
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is an empty list; at least one token or string is needed", param="prompt")
    if not isinstance(prompt[0], str | list):
        return [_token_ids(prompt, "prompt", model)]
    if len(prompt) > _MAX_PROMPTS:
        raise RequestError(f"prompt has {len(prompt)} entries; at most {_MAX_PROMPTS} are taken", param="prompt")
    return [_one_of_many(item, f"prompt[{index}]", model) for index, item in enumerate(prompt)]


def _one_of_many(item: Any, path: str, model: ServedModel) -> Prompt:
    if isinstance(item, list) and item:
        return _token_ids(item, path, model)
    fields.check(item, STRING, path)
    return str(item)


def _token_ids(ids: list[Any], path: str, model: ServedModel) -> list[int]:
    if len(ids) > model.context_length:
        raise ContextLengthError(len(ids), model.context_length)
    token = Integer(0, model.vocab_size - 1)
    for index, item in enumerate(ids):
        fields.check(item, token, f"{path}[{index}]")
    return ids


def _max_tokens(own: Mapping[str, Any], *, echo: bool) -> int:
    max_tokens: int = own.get("max_tokens", _DEFAULT_MAX_TOKENS)
    if max_tokens == 0 and not echo:
        message = "max_tokens is 0, which only makes sense with echo; it must be an integer of 1 or more"
        raise RequestError(message, param="max_tokens", code="invalid_value")
    return max_tokens


def _check_choices(num_prompts: int, generation: Generation) -> None:
    num_choices = num_prompts * generation.best_of
    if num_choices > _MAX_CHOICES:
        message = f"{num_prompts} prompts of {generation.best_of} replies each are more than {_MAX_CHOICES} replies"
        raise RequestError(f"{message}; send fewer at once", param="prompt", code="invalid_value")


def _features(own: Mapping[str, Any], generation: Generation, grammar: Grammar | None, *, echo: bool) -> Features:
    num_logprobs: int | None = own.get("logprobs")
    ranked = generation.best_of > generation.num_choices
    return Features(
        num_logprobs=0 if num_logprobs is None and ranked else num_logprobs,
        prompt_logprobs=echo and num_logprobs is not None,
        entry_at_end=num_logprobs is not None,
        grammar=grammar,
    )


async def _choices(
    model: ServedModel, generation: Generation, features: Features, number: int, prompt: Prompt, *, echo: bool
) -> list[Choice]:
    tokenizer = model.tokenizer
    if isinstance(prompt, str):
        ids = await encoded(model, len(prompt), lambda: tokenizer.encode_prompt(prompt))
        lead = prompt
    else:
        ids = tuple(prompt)
        lead = Detokenizer(tokenizer.token_bytes).whole(ids) if echo else ""
    if not ids:
        raise RequestError("the prompt is empty; send at least one token", param="prompt", code="invalid_value")
    return await make_choices(model, generation, ids, features, prompt=number, lead=lead if echo else "", chat=False)

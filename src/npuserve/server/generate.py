"""POST /generate: SGLang's native call."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.body import read_object
from npuserve.server.completions import read_prompts
from npuserve.server.errors import UnbuiltFieldError
from npuserve.server.fields import BOOLEAN, OBJECT, STRING, Integer, Kind
from npuserve.server.generate_frames import GenerateFrames
from npuserve.server.generation import Features, encoded, make_choices, respond
from npuserve.server.keys import cache_salt_of, owner_of
from npuserve.server.reply import Choice, Reply
from npuserve.server.sampling import FIELDS, Generation, read_generation
from npuserve.server.state import ServedModel, ServerState
from npuserve.server.structured import read_grammar

GENERATE_FIELDS: dict[str, Kind] = {
    "model": STRING,
    "sampling_params": OBJECT,
    "stream": BOOLEAN,
    "rid": STRING,
    "return_logprob": BOOLEAN,
    "top_logprobs_num": Integer(0, 20),
    "logprob_start_len": Integer(-1),
    "return_text_in_logprobs": BOOLEAN,
}
# SGLang's names in sampling_params -> ours; the others are the same.
_RENAMED = {"min_new_tokens": "min_tokens", "sampling_seed": "seed"}
SAMPLING_FIELDS: dict[str, Kind] = {
    **{name: kind for name, kind in FIELDS.items() if name not in ("stream", "stream_options", "best_of")},
    "max_new_tokens": Integer(0),
    "min_new_tokens": Integer(0),
    "sampling_seed": FIELDS["seed"],
    "no_stop_trim": BOOLEAN,
}
_UNBUILT = (
    "input_embeds",
    "image_data",
    "audio_data",
    "video_data",
    "lora_path",
    "session_params",
    "return_hidden_states",
)
_DEFAULT_MAX_TOKENS = 128  # SGLang's


@dataclass(frozen=True, slots=True)
class _Wish:
    """The checked body."""

    prompts: list[str | list[int]]
    is_batch: bool
    generation: Generation
    features: Features
    rid: str | None
    start: int
    with_text: bool


async def generate(request: Request) -> Response:
    """Continuations of one or several prompts; a stream's chunks carry all text and ids so far."""
    state: ServerState = request.app.state.server
    model = state.model
    wish = _read(await read_object(request), model)
    choices: list[Choice] = []
    for number, prompt in enumerate(wish.prompts):
        ids = await _ids(model, prompt)
        choices += await make_choices(model, wish.generation, ids, wish.features, prompt=number, chat=False)
    reply = Reply(state.engine, state.router, "gen", choices, cache_salt_of(request, wish.generation.cache_salt))
    frames = GenerateFrames(
        reply,
        wish.rid or reply.id,
        model.tokenizer.token_bytes,
        is_list=wish.is_batch or wish.generation.num_choices > 1,
        prompt_from=wish.start,
        with_text=wish.with_text,
    )
    reply.name = wish.rid
    state.live.check_free(owner_of(request), wish.rid)
    return await respond(request, reply, frames, stream=wish.generation.stream)


def _read(body: Mapping[str, Any], model: ServedModel) -> _Wish:
    own = fields.read(body, GENERATE_FIELDS)
    for field in _UNBUILT:
        if body.get(field):
            raise UnbuiltFieldError(field)
    given: dict[str, Any] = own.get("sampling_params", {})
    try:
        generation = _generation(given, model, stream=own.get("stream", False))
        grammar = read_grammar(given)
    except RequestError as error:
        param = error.param and f"sampling_params.{error.param}"
        raise RequestError(f"sampling_params: {error}", param=param, code=error.code) from error
    if grammar is not None:
        grammar = replace(grammar, param=f"sampling_params.{grammar.param}")
    prompts, is_batch = _prompts(body, model)
    logprobs = own.get("return_logprob", False)
    start = own.get("logprob_start_len", -1)
    features = Features(
        num_logprobs=own.get("top_logprobs_num", 0) if logprobs else None,
        prompt_logprobs=logprobs and start >= 0,
        entry_at_end=True,
        grammar=grammar,
    )
    rid: str | None = own.get("rid") or None
    if rid is not None and len(rid) > 256:
        raise RequestError(f"rid has {len(rid)} characters; at most 256 are taken", param="rid", code="invalid_value")
    return _Wish(prompts, is_batch, generation, features, rid, start, own.get("return_text_in_logprobs", False))


def _generation(given: Mapping[str, Any], model: ServedModel, *, stream: bool) -> Generation:
    values = {_RENAMED.get(name, name): value for name, value in given.items()}
    most = fields.read(given, {"max_new_tokens": Integer(1)}).get("max_new_tokens", _DEFAULT_MAX_TOKENS)
    values["stream"] = stream
    values["best_of"] = None
    if fields.read(given, {"no_stop_trim": BOOLEAN}).get("no_stop_trim", False):
        values["include_stop_str_in_output"] = True
    return read_generation(values, model.defaults, max_tokens=most, vocab_size=model.vocab_size, end_ids=model.end_ids)


def _prompts(body: Mapping[str, Any], model: ServedModel) -> tuple[list[str | list[int]], bool]:
    """The prompts, and whether the client sent a list of them."""
    given = [name for name in ("text", "input_ids") if body.get(name) is not None]
    if len(given) != 1:
        message = f"one of text and input_ids is needed, not {'both' if given else 'none'}"
        raise RequestError(message, param="text", code="missing_field" if not given else "invalid_value")
    name = given[0]
    value = body[name]
    kind: type = str if name == "text" else list
    is_batch = isinstance(value, list) and (name == "text" or (bool(value) and isinstance(value[0], list)))
    for index, item in enumerate(value if is_batch else [value]):
        path = f"{name}[{index}]" if is_batch else name
        fields.check(item, fields.OfType(kind, "a string" if kind is str else "a list of token ids"), path)
    try:
        return read_prompts({"prompt": value}, model), is_batch
    except RequestError as error:
        if error.param is None:
            raise
        param = name + error.param.removeprefix("prompt")
        message = str(error).replace("prompt", name, 1)
        raise RequestError(message, param=param, code=error.code) from error


async def _ids(model: ServedModel, prompt: str | list[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        ids = await encoded(model, len(prompt), lambda: model.tokenizer.encode_prompt(prompt))
    else:
        ids = tuple(prompt)
    if not ids:
        raise RequestError("the prompt is empty; send at least one token", param="text", code="invalid_value")
    return ids

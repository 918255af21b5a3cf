"""The sampling fields that every generating route shares, and their way into SamplingParams."""

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from npuserve.core import SamplingParams
from npuserve.errors import RequestError
from npuserve.server import fields
from npuserve.server.fields import BOOLEAN, OBJECT, STRING, Integer, Kind, Real

MAX_TOP_K = 64  # the card's sampler takes no more
_MAX_STOPS = 16

_STOP = fields.OfType(str, "a string")

# The one table of names and ranges; routes add their own names for the number of tokens.
FIELDS: dict[str, Kind] = {
    "temperature": Real(0, 5),
    "top_p": Real(0, 1, open_below=True),
    "min_p": Real(0, 1),
    "top_k": Integer(-1),
    "repetition_penalty": Real(0, 10, open_below=True),
    "repeat_penalty": Real(0, 10, open_below=True),
    "presence_penalty": Real(-2, 2),
    "frequency_penalty": Real(-2, 2),
    "seed": Integer(-(1 << 63), (1 << 64) - 1),
    "min_tokens": Integer(0),
    "ignore_eos": BOOLEAN,
    "skip_special_tokens": BOOLEAN,
    "include_stop_str_in_output": BOOLEAN,
    "logit_bias": OBJECT,
    "cache_salt": STRING,
    "n": Integer(1, 16),
    "best_of": Integer(1, 16),
    "stream": BOOLEAN,
    "stream_options": OBJECT,
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What holds where a request says nothing; the values here are OpenAI's. `max_tokens` is chat's."""

    temperature: float = 1.0
    top_k: int = MAX_TOP_K
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None

    def overridden(self, config: Mapping[str, Any]) -> "SamplingDefaults":
        """With the values of a generation_config that are in range; `do_sample: false` is its word for greedy."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        found = {
            name: config[name] for name in names if config.get(name) is not None and FIELDS[name].matches(config[name])
        }
        if "top_k" in found:
            found["top_k"] = _top_k(found["top_k"])
        if config.get("do_sample") is False:
            found["temperature"] = 0.0
        return replace(self, **found)


# Authors' recommendations for checkpoints whose generation_config is silent, by a part of the checkpoint's name.
_RECOMMENDED = {
    "smollm2": SamplingDefaults(temperature=0.2, top_p=0.9),
    "smollm3": SamplingDefaults(temperature=0.6, top_p=0.95),
    "lfm2": SamplingDefaults(temperature=0.3, min_p=0.15, repetition_penalty=1.05),
}


def sampling_defaults(checkpoint_name: str, generation_config: Mapping[str, Any]) -> SamplingDefaults:
    """The checkpoint's own values over its authors' recommendation over OpenAI's."""
    name = checkpoint_name.lower()
    recommended = next((values for part, values in _RECOMMENDED.items() if part in name), SamplingDefaults())
    return recommended.overridden(generation_config)


@dataclass(frozen=True, slots=True)
class TextParams:
    """How ids become the text of a choice, and where it stops."""

    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """A request's checked sampling fields; `sampling.max_tokens` is still to be limited by the prompt's room.

    `best_of` replies are made for each prompt, of which `num_choices` are sent.
    """

    sampling: SamplingParams
    text: TextParams
    stream: bool
    include_usage: bool
    cache_salt: str
    num_choices: int = 1
    best_of: int = 1


def read_generation(
    body: Mapping[str, Any],
    defaults: SamplingDefaults,
    *,
    max_tokens: int | None,
    vocab_size: int,
    end_ids: frozenset[int],
) -> Generation:
    """Check and take the fields of FIELDS, stop and stop_token_ids; `max_tokens` None is as many as there is room for.

    Raises RequestError.
    """
    values = fields.read(body, FIELDS)
    max_tokens = defaults.max_tokens if max_tokens is None else max_tokens
    stops = _stop_strings(body.get("stop"))
    stop_ids = _stop_token_ids(body.get("stop_token_ids"), vocab_size)
    bias = _logit_bias(values.get("logit_bias", {}), vocab_size)
    min_tokens = values.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        message = f"min_tokens is {min_tokens}, but the reply has at most {max_tokens} tokens"
        raise RequestError(message, param="min_tokens", code="invalid_value")
    repetition_penalty = values.get("repetition_penalty", values.get("repeat_penalty", defaults.repetition_penalty))
    seed = values.get("seed")
    sampling = SamplingParams(
        temperature=float(values.get("temperature", defaults.temperature)),
        top_k=_top_k(values.get("top_k", defaults.top_k)),
        top_p=float(values.get("top_p", defaults.top_p)),
        min_p=float(values.get("min_p", defaults.min_p)),
        repetition_penalty=float(repetition_penalty),
        presence_penalty=float(values.get("presence_penalty", defaults.presence_penalty)),
        frequency_penalty=float(values.get("frequency_penalty", defaults.frequency_penalty)),
        seed=secrets.randbits(64) if seed is None else seed & ((1 << 64) - 1),
        max_tokens=sys.maxsize if max_tokens is None else max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stop_ids if values.get("ignore_eos", False) else stop_ids | end_ids,
        logit_bias=bias,
    )
    text = TextParams(
        stops, values.get("include_stop_str_in_output", False), values.get("skip_special_tokens", True), min_tokens
    )
    num_choices, best_of = _num_choices(values)
    return Generation(
        sampling,
        text,
        values.get("stream", False),
        _include_usage(values),
        values.get("cache_salt", ""),
        num_choices,
        best_of,
    )


def _num_choices(values: Mapping[str, Any]) -> tuple[int, int]:
    """(n, best_of). Raises RequestError."""
    num_choices: int = values.get("n", 1)
    best_of: int = values.get("best_of", num_choices)
    if best_of < num_choices:
        message = f"best_of is {best_of}; it must be at least n, which is {num_choices}"
        raise RequestError(message, param="best_of", code="invalid_value")
    if best_of > num_choices and values.get("stream", False):
        message = f"best_of is {best_of}, but the best of several replies cannot be streamed; set stream to false"
        raise RequestError(message, param="best_of", code="invalid_value")
    return num_choices, best_of


def _top_k(value: int) -> int:
    return MAX_TOP_K if value < 1 else min(value, MAX_TOP_K)


def _include_usage(values: Mapping[str, Any]) -> bool:
    option = values.get("stream_options", {}).get("include_usage")
    if option is None:
        return False
    fields.check(option, BOOLEAN, "stream_options.include_usage")
    return bool(option)


def _stop_strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = fields.read_list(value, _STOP, "stop", most=_MAX_STOPS)
    for index, stop in enumerate(stops):
        path = f"stop[{index}]" if isinstance(value, list) else "stop"
        if not 1 <= len(stop) <= 1024:
            message = f"{path} has {len(stop)} characters; a stop string has 1 to 1024"
            raise RequestError(message, param=path, code="invalid_value")
    return tuple(stops)


def _stop_token_ids(value: Any, vocab_size: int) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(fields.read_list(value, Integer(0, vocab_size - 1), "stop_token_ids", most=_MAX_STOPS))


def _logit_bias(value: Mapping[str, Any], vocab_size: int) -> tuple[tuple[int, float], ...]:
    bias: dict[int, float] = {}
    for key, amount in value.items():
        path = f"logit_bias.{key}" if len(key) <= 20 else "logit_bias"
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            message = f"{path}: a key must be a token id from 0 to {vocab_size - 1}"
            raise RequestError(message, param=path, code="invalid_value")
        fields.check(amount, Real(-100, 100), path)
        bias[int(key)] = float(amount)
    return tuple(sorted(bias.items()))

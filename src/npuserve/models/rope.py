"""Rotary frequencies from a checkpoint's configuration: whole heads or parts; linear, Llama 3 and LongRoPE scaling."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.models.facts import Config, positive, positive_number

DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """`inverse_frequencies` [rotary_dim / 2] in radians per position, for the first dimensions of a head; `gain`
    multiplies cosine and sine; beyond `context_length` positions they would be others (None: never)."""

    inverse_frequencies: NDArray[np.float64]
    gain: float = 1.0
    context_length: int | None = None


def rotation(config: Config, head_dim: int) -> Rotation:
    """The rotation of heads; UnsupportedModelError for a scaling that is not built.

    The parameters stand in `rope_parameters` (newer checkpoints) or in `rope_theta`, `rope_scaling` and
    `partial_rotary_factor`. Raises CheckpointError for a parameter that is missing or cannot be.
    """
    parameters = _parameters(config)
    theta = positive_number(parameters, "rope_theta", positive_number(config, "rope_theta", DEFAULT_THETA))
    share = positive_number(parameters, "partial_rotary_factor", positive_number(config, "partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise CheckpointError(
            f"config.json: partial_rotary_factor {share} rotates {rotary_dim} of {head_dim} dimensions"
        )
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "proportional":
        # Gemma 4: frequencies of whole heads, but only the first pairs of them turn.
        whole = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        whole[rotary_dim // 2 :] = 0
        return Rotation(whole / positive_number(parameters, "factor", 1.0))
    plain = theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if kind == "default":
        return Rotation(plain)
    if kind == "linear":
        return Rotation(plain / positive_number(parameters, "factor"))
    if kind == "llama3":
        return Rotation(_llama3(plain, parameters))
    if kind == "longrope" and isinstance(parameters.get("short_factor"), list):
        return _longrope(plain, parameters, config)
    raise UnsupportedModelError(f"rotary scaling {kind!r} is not supported; default, linear, llama3 and longrope are")


def _parameters(config: Config) -> Config:
    parameters: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise CheckpointError(f"config.json: the rotary parameters are {parameters!r}, but must be an object")
    return parameters


def _longrope(plain: NDArray[np.float64], parameters: Config, config: Config) -> Rotation:
    """A divisor per frequency: the list for short contexts, and no position where the other list would differ.

    The gain is that of the LongRoPE paper (https://arxiv.org/abs/2402.13753): the root of
    1 + ln(stretch) / ln(original length). With one list twice this is how a GGUF file holds Llama 3's scaling.
    """
    factors = np.asarray(parameters["short_factor"], np.float64)
    if factors.shape != plain.shape or not (np.isfinite(factors) & (factors > 0)).all():
        raise CheckpointError(f"the rotary factors must be {plain.size} numbers above 0")
    gain = parameters.get("attention_factor")
    same = parameters.get("long_factor") == parameters["short_factor"]
    if same and gain is not None:
        return Rotation(plain / factors, positive_number(parameters, "attention_factor"))
    places = (place for place in (parameters, config) if "original_max_position_embeddings" in place)
    original = positive(next(places, parameters), "original_max_position_embeddings")
    if gain is None:
        longest = positive(config, "max_position_embeddings", original)
        stretch = positive_number(parameters, "factor", longest / original)
        gain = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return Rotation(plain / factors, float(gain), None if same else original)


def _llama3(plain: NDArray[np.float64], parameters: Config) -> NDArray[np.float64]:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended linearly."""
    factor = positive_number(parameters, "factor")
    low, high = positive_number(parameters, "low_freq_factor"), positive_number(parameters, "high_freq_factor")
    if low >= high:
        raise CheckpointError(f"config.json: low_freq_factor is {low}, but must be below high_freq_factor {high}")
    context = positive_number(parameters, "original_max_position_embeddings")
    periods_in_context = context * plain / (2 * math.pi)
    kept = np.clip((periods_in_context - low) / (high - low), 0.0, 1.0)
    return plain * (kept + (1.0 - kept) / factor)

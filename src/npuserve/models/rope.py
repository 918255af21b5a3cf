"""Rotary frequencies from a checkpoint's configuration: plain, linear and Llama 3 scaling."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.models.facts import Config, positive_number

DEFAULT_THETA = 10_000.0


def inverse_frequencies(config: Config, head_dim: int) -> NDArray[np.float64]:
    """[head_dim / 2] radians per position; UnsupportedModelError for a scaling that is not built.

    The parameters stand in `rope_parameters` (newer checkpoints) or in `rope_theta` and `rope_scaling`. Raises
    CheckpointError for a parameter that is missing or cannot be.
    """
    parameters = _parameters(config)
    theta = positive_number(parameters, "rope_theta", positive_number(config, "rope_theta", DEFAULT_THETA))
    plain = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return plain
    if kind == "linear":
        return plain / positive_number(parameters, "factor")
    if kind == "llama3":
        return _llama3(plain, parameters)
    factors = parameters.get("short_factor")
    if kind == "longrope" and isinstance(factors, list) and factors == parameters.get("long_factor"):
        return _listed(plain, parameters)
    raise UnsupportedModelError(f"rotary scaling {kind!r} is not supported; default, linear and llama3 are")


def _parameters(config: Config) -> Config:
    parameters: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise CheckpointError(f"config.json: the rotary parameters are {parameters!r}, but must be an object")
    return parameters


def _listed(plain: NDArray[np.float64], parameters: Config) -> NDArray[np.float64]:
    """A divisor per frequency, the same at every length: how a GGUF file holds Llama 3's scaling."""
    factors = np.asarray(parameters["short_factor"], np.float64)
    if factors.shape != plain.shape or not (np.isfinite(factors) & (factors > 0)).all():
        raise CheckpointError(f"the rotary factors must be {plain.size} numbers above 0")
    if parameters.get("attention_factor") != 1.0:
        raise UnsupportedModelError("LongRoPE with an attention factor other than 1 is not supported")
    return plain / factors


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

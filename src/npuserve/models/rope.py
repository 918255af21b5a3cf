"""Rotary frequencies from a checkpoint's configuration: plain, linear and Llama 3 scaling."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import UnsupportedModelError
from npuserve.models.facts import Config


def inverse_frequencies(config: Config, head_dim: int) -> NDArray[np.float64]:
    """[head_dim / 2] radians per position; UnsupportedModelError for a scaling that is not built.

    The parameters stand in `rope_parameters` (newer checkpoints) or in `rope_theta` and `rope_scaling`.
    """
    parameters: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    plain = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return plain
    if kind == "linear":
        return plain / float(parameters["factor"])
    if kind == "llama3":
        return _llama3(plain, parameters)
    raise UnsupportedModelError(f"rotary scaling {kind!r} is not supported; default, linear and llama3 are")


def _llama3(plain: NDArray[np.float64], parameters: dict[str, Any]) -> NDArray[np.float64]:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended linearly."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    periods_in_context = float(parameters["original_max_position_embeddings"]) * plain / (2 * math.pi)
    kept = np.clip((periods_in_context - low) / (high - low), 0.0, 1.0)
    return plain * (kept + (1.0 - kept) / factor)

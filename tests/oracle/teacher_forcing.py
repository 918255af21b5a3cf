"""The emulation against the device layer by layer, each from the device's own hidden state.

Free-running, the two part after a few layers: fp32 rounding tips a code over, and that tips others. Here an error
cannot grow: what is left of a layer is fp32 rounding (about 3e-7 of what the layer adds) and the codes that this
layer itself tips over. A code is up to 1/127 of its block's largest, so such a position is off by a percent. One in
the key or value of a position that all later ones look at, such as the first, is in all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.accuracy import Tokens
from oracle.emulation import Array, Emulation
from oracle.layer_run import LayerRun
from simulated_device import Logits

ROUNDING = 1e-5
"""Errors above this are codes that were tipped over."""
POSITIONS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class LayerError:
    """Distances over all positions of what a layer adds to the hidden state, relative to its length on the device."""

    median: float
    largest: float
    tipped: float
    """The share of positions with more than rounding."""


@dataclass(frozen=True, slots=True)
class Forced:
    """Of each layer, and of the last layer and the head together: how many positions have the same likeliest token,
    and the largest distance of logits relative to their length. `logits` are the device's."""

    layers: tuple[LayerError, ...]
    top1: float
    largest_logit_error: float
    logits: Logits


def teacher_forced(run: LayerRun, emulation: Emulation, tokens: Tokens) -> Forced:
    """Both on one conversation of one slot."""
    hidden, layers = run.embedded(tokens), []
    for layer in range(emulation.facts.num_layers):
        given = hidden
        hidden = run.after(layer, given)
        emulated = emulation.layer(layer, given.astype(np.float64))
        layers.append(_error(emulated - given, hidden.astype(np.float64) - given))
        emulation.forget()
    logits = run.logits(given)
    same, errors = zip(*_logits(logits, emulation, emulated), strict=True)
    return Forced(tuple(layers), float(np.concatenate(same).mean()), float(np.concatenate(errors).max()), logits)


def _error(emulated: Array, device: Array) -> LayerError:
    errors = _distances(emulated, device)
    return LayerError(float(np.median(errors)), float(errors.max()), float(np.mean(errors > ROUNDING)))


def _logits(device: Logits, emulation: Emulation, emulated: Array) -> Iterator[tuple[NDArray[np.bool_], Array]]:
    for start in range(0, len(device), POSITIONS_AT_ONCE):
        mine = emulation.head(emulation.last_norm(emulated[start : start + POSITIONS_AT_ONCE]))
        theirs = device[start : start + POSITIONS_AT_ONCE].astype(np.float64)
        yield mine.argmax(axis=1) == theirs.argmax(axis=1), _distances(mine, theirs)


def _distances(one: Array, other: Array) -> Array:
    """Per row, relative to the other's length."""
    distances: Array = np.linalg.norm(one - other, axis=1) / np.linalg.norm(other, axis=1)
    return distances

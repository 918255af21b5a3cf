"""What the device computes, in float64 and without its programs: the transformer with int8 at the same places.

Written from these rules, not from the code under test. `Q(x, g)` rounds groups of x to int8: scale = amax / 127 per
group, codes to nearest even; the result is codes * scale, and a group of zeros stays zero. Groups of 128 count from
the first element, and the last one may be shorter.

    basis            the hidden state x stands as x B, where B mixes groups of channels: signs from NumPy's PCG64 with
                     seed 0, then a Hadamard matrix over sqrt(width), its width the largest power of two up to 64 that
                     divides the hidden size; weights are multiplied by the norm before them and by B in float64, then
                     rounded to fp32
    embedding        exact but for that
    weights          Q of every linear layer and of the head, groups of 128 along the inputs; in fp32, with the scale
                     amax * f32(1/127), and q's rows (where there is no head norm) times f32(log2(e) / sqrt(head_dim))
    norms            RMS norm without its weight, then Q in groups of 128 (both norms of a layer and the last one)
    q, k             after bias, head norm and rotation: Q in groups of 128 within each head
    v                after bias: Q of each token's head as one group
    probabilities    exp(score - maximum) times the value's scale: Q in groups of 128 positions from position 0 on,
                     where positions that a row does not see count as 0; the sum that divides them is not rounded
    attention        all heads side by side: Q in groups of 128
    activation       silu(gate) * up: Q in groups of 128

Everything else is float64, so that what remains between this and the device is fp32 rounding, and the codes that it
tips over. In a deep model one such code is enough to change most later ones: two runs of this emulation that differ
by 1e-7 at the embedding (`noise`) drift as far apart, which is the measure for how near a device can come.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.models.facts import ModelFacts

Array = NDArray[np.float64]
GROUP = 128


@dataclass(frozen=True, slots=True)
class Rounding:
    """Which places round to int8; `weights` has the head's too, `norms` are the inputs of qkv and of gate and up."""

    weights: bool = True
    norms: bool = True
    last_norm: bool = True
    query: bool = True
    key: bool = True
    value: bool = True
    probabilities: bool = True
    attention: bool = True
    activation: bool = True

    def without(self, place: str) -> "Rounding":
        return replace(self, **{place: False})

    @classmethod
    def none(cls) -> "Rounding":
        return cls(**{field.name: False for field in fields(cls)})

    @classmethod
    def places(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


def round_to_int8(values: Array, group: int | None = GROUP) -> Array:
    """Q of the last axis; `group` None takes it as one group."""
    codes, scales = _codes(values, group)
    return (codes * scales).reshape(*values.shape[:-1], -1)[..., : values.shape[-1]]


def _codes(values: Array, group: int | None) -> tuple[Array, Array]:
    """Codes [..., groups, size] and scales [..., groups, 1]."""
    size = values.shape[-1]
    width = group or size
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -size % width)])
    grouped = padded.reshape(*values.shape[:-1], -1, width)
    scales = np.abs(grouped).max(axis=-1, keepdims=True) / 127
    return np.rint(grouped / np.where(scales == 0, 1, scales)), scales


def _weights_in_int8(weights: NDArray[np.float32]) -> Array:
    """Q of the last axis in groups of 128, fp32 like the image builder, so that the codes are the same."""
    rows, columns = weights.shape
    grouped = np.pad(weights, ((0, 0), (0, -columns % GROUP))).reshape(rows, -1, GROUP)
    scales = np.abs(grouped).max(axis=2, keepdims=True) * np.float32(1 / 127)
    codes = np.rint(grouped / np.where(scales == 0, np.float32(1), scales)).astype(np.float64)
    values: Array = (codes * scales).reshape(rows, -1)[:, :columns]
    return values


def hadamard_basis(size: int) -> tuple[Array, float]:
    """B as ones and minus ones, [size, size], and the factor that makes it orthogonal.

    Apart, because sums of weights are then exact, and are rounded to fp32 as the image builder's are.
    """
    width = min(size & -size, 64)
    mixed: Array = np.ones((1, 1))
    for _ in range(width.bit_length() - 1):
        mixed = np.kron([[1.0, 1.0], [1.0, -1.0]], mixed).astype(np.float64)
    signs = np.random.default_rng(0).integers(0, 2, size) * 2.0 - 1.0
    basis: Array = signs[:, None] * np.kron(np.eye(size // width), mixed)
    return basis, width**-0.5


class Emulation:
    """One checkpoint; weights are read and rounded once. `known` are matrices by name that are taken as they are."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        facts: ModelFacts,
        rounding: Rounding | None = None,
        *,
        noise: float = 0.0,
        known: Mapping[str, Array] | None = None,
    ) -> None:
        self.facts, self.rounding = facts, rounding or Rounding()
        self.noise = noise
        self._checkpoint = checkpoint
        self._known = {f"int8 {name}": matrix for name, matrix in (known or {}).items()}
        self._weights = dict(self._known)
        self._basis, self._factor = hadamard_basis(facts.hidden_size)

    def logits(self, token_ids: NDArray[np.int64]) -> Array:
        """float64 [tokens, vocab_size] of a conversation that begins with the first token."""
        return self.head(self.hidden(token_ids))

    def hidden(self, token_ids: NDArray[np.int64]) -> Array:
        """The last layer's output after the last norm, [tokens, hidden_size]."""
        facts = self.facts
        hidden = self._mixed(self._vector(facts.embedding)[token_ids])
        hidden = hidden * (1 + self.noise * np.random.default_rng(0).standard_normal(hidden.shape))
        for layer in range(facts.num_layers):
            hidden = self.layer(layer, hidden)
        return self.last_norm(hidden)

    def forget(self) -> None:
        """Drop the weights that are kept for the next call."""
        self._weights = dict(self._known)

    def last_norm(self, hidden: Array) -> Array:
        """What the head reads of the last layer's output."""
        return self._round("last_norm", self._norm(hidden))

    def head(self, hidden: Array) -> Array:
        """Logits of normed rows."""
        name = self.facts.embedding if self.facts.tied_head else self.facts.head
        return hidden @ self._matrix(name, norm=self.facts.final_norm).T

    def layer(self, index: int, hidden: Array) -> Array:
        """What a layer makes of the hidden state of a conversation's first positions, both [tokens, hidden_size]."""
        names, prefix = self.facts.names, self.facts.layer_prefix.format(index)
        input_norm, post_norm = prefix + names.input_norm, prefix + names.post_norm
        attention = self._round(
            "attention", self._attention(prefix, self._round("norms", self._norm(hidden)), input_norm)
        )
        hidden = hidden + attention @ self._output(f"{prefix}{names.o}.weight").T
        if self.facts.o_bias:
            hidden = hidden + self._mixed(self._vector(f"{prefix}{names.o}.bias"))
        normed = self._round("norms", self._norm(hidden))
        gate, up = (
            normed @ self._matrix(f"{prefix}{name}.weight", norm=post_norm).T for name in (names.gate, names.up)
        )
        activation = self._round("activation", gate / (1 + np.exp(-gate)) * up)
        return hidden + activation @ self._output(f"{prefix}{names.down}.weight").T

    def _attention(self, prefix: str, normed: Array, norm: str) -> Array:
        """[tokens, heads * head_dim]."""
        facts, names = self.facts, self.facts.names
        query = self._rotate(self._heads(prefix + names.q, normed, norm, names.q_norm and prefix + names.q_norm))
        key = self._rotate(self._heads(prefix + names.k, normed, norm, names.k_norm and prefix + names.k_norm))
        value = self._heads(prefix + names.v, normed, norm, None)
        query, key = self._round("query", query), self._round("key", key)
        heads = [
            self._attend(query[:, head], key[:, head // facts.group_size], value[:, head // facts.group_size])
            for head in range(facts.num_heads)
        ]
        return np.concatenate(heads, axis=1)

    def _heads(self, name: str, normed: Array, norm: str, head_norm: str | None) -> Array:
        """[tokens, heads, head_dim] of one of q, k and v."""
        facts = self.facts
        product = normed @ self._matrix(f"{name}.weight", norm=norm).T
        if facts.qkv_bias:
            product = product + self._vector(f"{name}.bias")
        heads = product.reshape(len(normed), -1, facts.head_dim)
        return heads if head_norm is None else self._norm(heads) * self._vector(head_norm)

    def _rotate(self, heads: Array) -> Array:
        angles = np.arange(len(heads))[:, None] * self.facts.inverse_frequencies[None, :]
        cosines, sines = np.cos(angles)[:, None] * self.facts.rope_gain, np.sin(angles)[:, None] * self.facts.rope_gain
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)

    def _attend(self, query: Array, key: Array, value: Array) -> Array:
        """One head, [tokens, head_dim] of each, causal."""
        scores = query @ key.T / np.sqrt(self.facts.head_dim)
        scores[np.triu_indices(len(query), 1)] = -np.inf
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        codes, scales = _codes(value, None) if self.rounding.value else (value[:, None], np.ones((len(value), 1, 1)))
        weighted = self._round("probabilities", powers * scales[None, :, 0, 0])
        result: Array = weighted @ codes[:, 0] / powers.sum(axis=1, keepdims=True)
        return result

    def _norm(self, values: Array) -> Array:
        variance: Array = np.mean(values**2, axis=-1, keepdims=True)
        return values / np.sqrt(variance + self.facts.norm_eps)

    def _matrix(self, name: str, *, norm: str) -> Array:
        """A matrix that reads the hidden state behind a norm."""
        if (kept := self._weights.get(f"int8 {name}")) is None:
            values = self._mixed(self._checkpoint.tensor(name) * self._vector(norm))
            is_query = f".{self.facts.names.q}." in name and not self.facts.qk_norm
            factor = np.float32(np.log2(np.e) / np.sqrt(self.facts.head_dim)) if is_query else np.float32(1)
            kept = self._weights[f"int8 {name}"] = self._rounded_weights(values, factor)
        return kept

    def _output(self, name: str) -> Array:
        """A matrix that adds to the hidden state."""
        if (kept := self._weights.get(f"int8 {name}")) is None:
            values = self._mixed(self._checkpoint.tensor(name).T.astype(np.float64)).T
            kept = self._weights[f"int8 {name}"] = self._rounded_weights(values, np.float32(1))
        return kept

    def _mixed(self, values: Array) -> Array:
        """The last axis in the hidden state's basis."""
        mixed: Array = values @ self._basis * self._factor
        return mixed

    def _rounded_weights(self, values: Array, factor: np.float32) -> Array:
        if not self.rounding.weights:
            return values
        return _weights_in_int8(values.astype(np.float32) * factor) / float(factor)

    def _vector(self, name: str) -> Array:
        """A tensor as it is in the checkpoint."""
        if (kept := self._weights.get(name)) is None:
            kept = self._weights[name] = self._checkpoint.tensor(name).astype(np.float64)
        return kept

    def _round(self, place: str, values: Array) -> Array:
        return round_to_int8(values) if getattr(self.rounding, place) else values

"""What the program builder has to know of a model: numbers and names, no code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import CheckpointError

Config = Mapping[str, Any]
LARGEST_NUMBER = 1e30


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Tensor names of one decoder layer below its prefix; None where the family has no such tensor.

    q, k and v with one name are row slices of one tensor, in this order; so are gate and up. Where the layer has a
    short convolution in attention's place, `o` is its output projection.
    """

    input_norm: str = "input_layernorm.weight"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    q_norm: str | None = None
    k_norm: str | None = None
    conv_in: str = "conv.in_proj"
    conv: str = "conv.conv"
    post_norm: str = "post_attention_layernorm.weight"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One kind of decoder layer: pre-norm, rotary attention with grouped heads, SwiGLU.

    `inverse_frequencies` are the rotary ones in radians per position, one for each rotated pair of dimensions: the
    first `rotary_dim` dimensions of a head turn, the others pass. `rope_gain` multiplies cosine and sine.

    A layer with `conv_taps` has in attention's place a short convolution over positions (LFM2): the input projection
    gives B, C and x, and y = C * conv(B * x) goes through the output projection; it has no heads.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    inverse_frequencies: NDArray[np.float64]
    rope_gain: float = 1.0
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    conv_taps: int = 0
    names: LayerNames = field(default_factory=LayerNames)

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """The matrices that read the normed input of the layer's first half, as (name, rows), in the order of rows."""
        if self.conv_taps:
            return ((self.names.conv_in, 3 * self.hidden_size),)
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return (self.names.q, heads), (self.names.k, kv_heads), (self.names.v, kv_heads)

    @property
    def is_recurrent(self) -> bool:
        """Whether the layer keeps a state that each position changes."""
        return self.conv_taps > 0

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that rotate; 0 where the layer has no positions."""
        return 2 * len(self.inverse_frequencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(LayerFacts):
    """A decoder-only transformer. Its own layer facts are those of its usual layer, kind 0.

    Where layers differ, `variants` are the kinds from 1 on, and `layer_kinds` has the kind of each layer. Layers of one
    kind share their part of the program and their layouts in memory.
    """

    model_type: str
    num_layers: int
    vocab_size: int
    tied_head: bool
    context_length: int
    layer_prefix: str = "model.layers.{}."
    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    skipped: str = ""
    """A pattern of names of tensors that are no part of what is served, like those of a vision tower."""
    rotated: bool = True
    """Whether the image has the hidden state in another basis, which int8 suits better. All that reads it has to be a
    matrix behind an RMS norm of it, and all that adds to it a matrix: no norm between, and no multiplier by channel."""
    variants: tuple[LayerFacts, ...] = ()
    layer_kinds: tuple[int, ...] = ()

    @property
    def kinds(self) -> tuple[LayerFacts, ...]:
        return (self, *self.variants)

    @property
    def has_state(self) -> bool:
        """Whether some layers are recurrent."""
        return any(kind.is_recurrent for kind in self.kinds)

    def kind_of(self, layer: int) -> int:
        """Which of `kinds` a layer is."""
        return self.layer_kinds[layer] if self.layer_kinds else 0


Family = Callable[[Config], ModelFacts]


def positive(config: Config, key: str, default: int | None = None) -> int:
    """A whole number above zero from config.json; CheckpointError names the key otherwise."""
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {key} is {value!r}, but must be a whole number of at least 1")
    return value


def positive_number(config: Config, key: str, default: float | None = None) -> float:
    """A number above zero from config.json; CheckpointError names the key otherwise."""
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LARGEST_NUMBER:
        raise CheckpointError(f"config.json: {key} is {value!r}, but must be a number above 0")
    return float(value)

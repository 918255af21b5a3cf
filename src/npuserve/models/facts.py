"""What the program builder has to know of a model: numbers and names, no code."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import CheckpointError
from npuserve.quant.formats import INT8, WeightFormat

Config = Mapping[str, Any]
LARGEST_NUMBER = 1e30


class Activation(Enum):
    """The function of the gate in a gated MLP; GELU as its tanh approximation."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class DeltaFacts:
    """Heads of a gated delta rule: each of `num_key_heads` serves as many of `num_value_heads` in a row."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def keys(self) -> int:
        """Numbers of all key heads."""
        return self.num_key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """q, k and v side by side."""
        return 2 * self.keys + self.values

    @property
    def group_size(self) -> int:
        return self.num_value_heads // self.num_key_heads


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Tensor names of one decoder layer below its prefix; None where the family has no such tensor.

    q, k and v with one name are row slices of one tensor, in this order; so are gate and up. Where the layer has a
    short convolution in attention's place, `o` is its output projection. `after_attention` and `after_mlp` are norms
    of a half's result before it is added, `scalar` multiplies the layer's result.
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
    delta_qkv: str = "linear_attn.in_proj_qkv"
    delta_z: str = "linear_attn.in_proj_z"
    delta_b: str = "linear_attn.in_proj_b"
    delta_a: str = "linear_attn.in_proj_a"
    delta_norm: str = "linear_attn.norm.weight"
    dt_bias: str = "linear_attn.dt_bias"
    a_log: str = "linear_attn.A_log"
    post_norm: str = "post_attention_layernorm.weight"
    after_attention: str | None = None
    after_mlp: str | None = None
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    input_gate: str = "per_layer_input_gate"
    input_projection: str = "per_layer_projection"
    after_input: str = "post_per_layer_input_norm.weight"
    scalar: str | None = None


@dataclass(frozen=True, slots=True)
class LayerFormats:
    """Weight formats of a layer's matrices: `mixer` is what reads and writes the layer's first half, `inputs` is what
    takes in the layer's own inputs.

    `paired` has the 4-bit ones multiplied with PAIR, which changes the last bits of sums.
    """

    mixer: WeightFormat = INT8
    gate_up: WeightFormat = INT8
    down: WeightFormat = INT8
    inputs: WeightFormat = INT8
    paired: bool = False

    @property
    def has_four_bits(self) -> bool:
        return any(kept.is_four_bit for kept in (self.mixer, self.gate_up, self.down, self.inputs))

    def __str__(self) -> str:
        names = "/".join(kept.name for kept in (self.mixer, self.gate_up, self.down, self.inputs))
        return names + ("p" if self.paired else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One kind of decoder layer: pre-norm, rotary attention with grouped heads, SwiGLU.

    `inverse_frequencies` are the rotary ones in radians per position, one for each rotated pair of dimensions: the
    first `rotary_dim` dimensions of a head turn, the others pass. `rope_gain` multiplies cosine and sine.

    A layer with `conv_taps` has in attention's place a short convolution over positions (LFM2): the input projection
    gives B, C and x, and y = C * conv(B * x) goes through the output projection; it has no heads.

    A layer with `delta` has in attention's place the gated delta rule (https://arxiv.org/abs/2412.06464) behind a
    convolution of q, k and v.

    Weights of RMS norms are stored less `norm_offset`. With an `output_gate` q's matrix has for each head the rows of q
    and then those of a gate, whose sigmoid multiplies the head's result. With a `window` a position sees that many,
    itself among them. `v_norm` is a norm of v's heads without a weight. Layers that do not own their cache have q alone
    and see the keys and values of a layer before them. A layer with `input_size` takes as many numbers that belong to
    the token and the layer in at its end (Gemma's per-layer embeddings): y = projection(activation(gate(x)) * numbers),
    normed and added.
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
    v_norm: bool = False
    attention_scale: float | None = None
    window: int | None = None
    owns_cache: bool = True
    conv_taps: int = 0
    delta: DeltaFacts | None = None
    norm_offset: float = 0.0
    output_gate: bool = False
    activation: Activation = Activation.SILU
    input_size: int = 0
    names: LayerNames = field(default_factory=LayerNames)
    formats: LayerFormats = field(default_factory=LayerFormats)

    @property
    def mixer(self) -> str:
        """What stands in the layer's first half, as mix strings call it."""
        if self.delta:
            return "delta"
        return "conv" if self.conv_taps else "attn"

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """The matrices that read the normed input of the layer's first half, as (name, rows), in the order of rows."""
        names, delta = self.names, self.delta
        if delta:
            heads_of_values = delta.num_value_heads
            parts = (names.delta_qkv, delta.channels), (names.delta_z, delta.values)
            return *parts, (names.delta_a, heads_of_values), (names.delta_b, heads_of_values)
        if self.conv_taps:
            return ((names.conv_in, 3 * self.hidden_size),)
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if not self.owns_cache:
            return ((self.names.q, heads),)
        if self.output_gate:
            heads *= 2
        return (self.names.q, heads), (self.names.k, kv_heads), (self.names.v, kv_heads)

    @property
    def conv_channels(self) -> int:
        return self.delta.channels if self.delta else self.hidden_size

    @property
    def score_scale(self) -> float:
        """What scores are multiplied with: the inverse root of a head's size where the family says nothing else."""
        return 1 / math.sqrt(self.head_dim) if self.attention_scale is None else self.attention_scale

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
    kind share their part of the program and their layouts in memory. `cache_layers` has for each layer the one whose
    keys and values it sees; without it each sees its own.

    The embedding is multiplied with `embedding_scale`, and logits z become cap * tanh(z / cap) where there is a cap.
    The numbers that a layer takes in are the row of its token in `input_embedding`, times `input_scale`, plus the
    normed product of its rows of `input_projection` with the embedding; their sum is divided by the root of two.
    """

    model_type: str
    num_layers: int
    vocab_size: int
    tied_head: bool
    context_length: int
    head_format: WeightFormat = INT8
    layer_prefix: str = "model.layers.{}."
    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    embedding_scale: float = 1.0
    logit_cap: float | None = None
    input_scale: float = 1.0
    input_embedding: str = "model.embed_tokens_per_layer.weight"
    input_projection: str = "model.per_layer_model_projection.weight"
    input_norm: str = "model.per_layer_projection_norm.weight"
    skipped: str = ""
    """A pattern of names of tensors that are no part of what is served, like those of a vision tower."""
    rotated: bool = True
    """Whether the image has the hidden state in another basis, which int8 suits better. All that reads it has to be a
    matrix behind an RMS norm of it, and all that adds to it a matrix: no norm between, and no multiplier by channel."""
    takes_over: bool = False
    """Whether the image has matrices of a 4-bit checkpoint as they are, for which `rotated` has to be off."""
    variants: tuple[LayerFacts, ...] = ()
    layer_kinds: tuple[int, ...] = ()
    cache_layers: tuple[int, ...] = ()

    @property
    def kinds(self) -> tuple[LayerFacts, ...]:
        return (self, *self.variants)

    @property
    def has_state(self) -> bool:
        """Whether some layers are recurrent."""
        return any(kind.is_recurrent for kind in self.kinds)

    def cache_of(self, layer: int) -> int:
        """The layer whose keys and values a layer sees."""
        return self.cache_layers[layer] if self.cache_layers else layer

    def kind_of(self, layer: int) -> int:
        """Which of `kinds` a layer is."""
        return self.layer_kinds[layer] if self.layer_kinds else 0


Family = Callable[[Config], ModelFacts]


def text_config(config: Config, *, tied: bool) -> Config | None:
    """The text part of a model with several, which may leave its word on tied weights to the whole (default `tied`).

    None for a configuration that is all text. Raises CheckpointError when the part is no object.
    """
    nested = config.get("text_config")
    if nested is None:
        return None
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"config.json: text_config is {nested!r}, but must be an object")
    return {"tie_word_embeddings": config.get("tie_word_embeddings", tied), **nested}


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

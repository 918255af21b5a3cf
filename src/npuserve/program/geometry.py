"""A model's sizes as the machine sees them: whole blocks of 128, whole attention blocks of 256 positions."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from npuserve.errors import UnsupportedModelError
from npuserve.models.facts import LayerFacts, ModelFacts

BLOCK = 128
ATTENTION_BLOCK = 256
WORD = 4


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class LayerGeometry:
    """Sizes of one kind of layer, in elements unless the name says otherwise; all follow from facts and capacity.

    q and k heads are padded with zeros to whole blocks (scores do not change); the result of attention is not
    padded per head, so that the output projection reads no zeros but those that fill up its last block.
    """

    facts: LayerFacts
    capacity: int

    def __post_init__(self) -> None:
        if self.facts.head_dim % 2 or self.facts.head_dim > 4 * BLOCK:
            raise UnsupportedModelError(f"head_dim {self.facts.head_dim} is not supported; even sizes up to 512 are")

    @cached_property
    def hidden(self) -> int:
        return round_up(self.facts.hidden_size, BLOCK)

    @cached_property
    def head(self) -> int:
        return round_up(self.facts.head_dim, BLOCK)

    @cached_property
    def value_rows(self) -> int:
        """Rows of V^T that a token's QST writes: half a block for small heads, else whole blocks."""
        return BLOCK // 2 if self.facts.head_dim <= BLOCK // 2 else self.head

    @cached_property
    def num_qk_heads(self) -> int:
        return self.facts.num_heads + self.num_own_kv_heads

    @cached_property
    def num_own_kv_heads(self) -> int:
        """Key-value heads that the layer computes and stores."""
        return self.facts.num_kv_heads if self.facts.owns_cache else 0

    @cached_property
    def qkv(self) -> int:
        """Results of the input projection: q, k and v heads, or B, C and x of a convolution."""
        return sum(rows for _, rows in self.facts.inputs)

    @cached_property
    def attention_size(self) -> int:
        """Inputs of the output projection."""
        if self.facts.delta:
            return self.facts.delta.values
        return self.facts.hidden_size if self.facts.conv_taps else self.facts.num_heads * self.facts.head_dim

    @cached_property
    def attention(self) -> int:
        return round_up(self.attention_size, BLOCK)

    @cached_property
    def pads_attention(self) -> bool:
        return self.attention > self.attention_size

    @cached_property
    def mlp(self) -> int:
        return round_up(self.facts.intermediate_size, BLOCK)

    @cached_property
    def input(self) -> int:
        """The layer's own input, padded."""
        return round_up(self.facts.input_size, BLOCK)

    @cached_property
    def conv_state(self) -> int:
        """Words of a convolution's inputs but the newest."""
        return max(self.facts.conv_taps - 1, 0) * self.facts.conv_channels

    @cached_property
    def head_state(self) -> int:
        """Words of a delta rule's state of one head: [value_dim][key_dim]."""
        return self.facts.delta.value_dim * self.facts.delta.key_dim if self.facts.delta else 0

    @cached_property
    def heads_state_start(self) -> int:
        """Where the first head's state stands behind the convolution's, in words."""
        return round_up(self.conv_state, BLOCK // WORD)

    @cached_property
    def state(self) -> int:
        """Words that a recurrent layer carries from position to position."""
        heads = self.facts.delta.num_value_heads if self.facts.delta else 0
        return self.heads_state_start + heads * self.head_state if heads else self.conv_state

    @cached_property
    def positions(self) -> int:
        """Positions a slot has room for: the capacity in whole attention blocks."""
        return round_up(self.capacity, ATTENTION_BLOCK)

    @cached_property
    def v_row_stride_bytes(self) -> int:
        """One block more than the positions: rows of V^T then fall on different cache sets."""
        return self.positions + BLOCK


@dataclass(frozen=True)
class Geometry(LayerGeometry):
    """Sizes of a model: those of its usual layer, and of every other kind."""

    facts: ModelFacts

    @cached_property
    def kinds(self) -> tuple[LayerGeometry, ...]:
        """One for each of the facts' kinds."""
        return (self, *(LayerGeometry(kind, self.capacity) for kind in self.facts.variants))

    def layers_of(self, kind: int) -> tuple[int, ...]:
        """Numbers of the layers of a kind."""
        return tuple(layer for layer in range(self.facts.num_layers) if self.facts.kind_of(layer) == kind)

    @cached_property
    def rotaries(self) -> tuple[LayerFacts, ...]:
        """One layer's facts for each different rotation."""
        found: list[LayerFacts] = []
        for facts in self.facts.kinds:
            if facts.rotary_dim and not any(same_rotation(facts, other) for other in found):
                found.append(facts)
        return tuple(found)

    @cached_property
    def rotary_words(self) -> int:
        """Cosines and sines that a row needs, of all rotations."""
        return sum(2 * facts.rotary_dim for facts in self.rotaries)

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """The different windows of the kinds."""
        return tuple(sorted({kind.window for kind in self.facts.kinds if kind.window is not None}))


def same_rotation(one: LayerFacts, other: LayerFacts) -> bool:
    return one.rope_gain == other.rope_gain and np.array_equal(one.inverse_frequencies, other.inverse_frequencies)

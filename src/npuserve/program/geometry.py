"""A model's sizes as the machine sees them: whole blocks of 128, whole attention blocks of 256 positions."""

from dataclasses import dataclass

from npuserve.errors import UnsupportedModelError
from npuserve.models.facts import ModelFacts

BLOCK = 128
ATTENTION_BLOCK = 256
WORD = 4


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes in elements unless the name says otherwise; all follow from facts and capacity.

    q and k heads are padded with zeros to whole blocks (scores do not change); the result of attention is not
    padded per head, so that the output projection reads no zeros but those that fill up its last block.
    """

    facts: ModelFacts
    capacity: int

    def __post_init__(self) -> None:
        if self.facts.head_dim % 2 or self.facts.head_dim > 2 * BLOCK:
            raise UnsupportedModelError(f"head_dim {self.facts.head_dim} is not supported; even sizes up to 256 are")

    @property
    def hidden(self) -> int:
        return round_up(self.facts.hidden_size, BLOCK)

    @property
    def head(self) -> int:
        return round_up(self.facts.head_dim, BLOCK)

    @property
    def value_rows(self) -> int:
        """Rows of V^T that a token's QST writes: half a block for small heads, else whole blocks."""
        return BLOCK // 2 if self.facts.head_dim <= BLOCK // 2 else self.head

    @property
    def num_qk_heads(self) -> int:
        return self.facts.num_heads + self.facts.num_kv_heads

    @property
    def qkv(self) -> int:
        return (self.facts.num_heads + 2 * self.facts.num_kv_heads) * self.facts.head_dim

    @property
    def attention(self) -> int:
        return round_up(self.facts.num_heads * self.facts.head_dim, BLOCK)

    @property
    def mlp(self) -> int:
        return round_up(self.facts.intermediate_size, BLOCK)

    @property
    def positions(self) -> int:
        """Positions a slot has room for: the capacity in whole attention blocks."""
        return round_up(self.capacity, ATTENTION_BLOCK)

    @property
    def v_row_stride_bytes(self) -> int:
        """One block more than the positions: rows of V^T then fall on different cache sets."""
        return self.positions + BLOCK

"""Transformers' own models with the device's rounding to int8: an emulation that knows every family.

Rounding is the one that `emulation` describes: matrices and their inputs in groups of 128, q and k in groups of 128
within a head, each token's v as one group, probabilities times the values' scales in groups of 128 positions. All else
is float64.
"""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP = 128


def round_to_int8(values: Tensor, group: int = GROUP) -> Tensor:
    """Groups of the last axis, counted from the first element; the last group may be shorter."""
    codes, scales = _codes(values, group)
    return (codes * scales).flatten(-2)[..., : values.shape[-1]]


def _codes(values: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Codes [..., groups, group] and scales [..., groups, 1]."""
    padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % group))
    grouped = padded.unflatten(-1, (-1, group))
    scales = grouped.abs().amax(-1, keepdim=True) / 127
    return torch.round(grouped / torch.where(scales == 0, 1.0, scales)), scales


class RoundedLinear(torch.nn.Module):  # type: ignore[misc]
    """A linear layer that rounds its weights once and its inputs always."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(round_to_int8(linear.weight.detach()), requires_grad=False)
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.nn.functional.linear(round_to_int8(inputs), self.weight, self.bias)


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    """In the place of a model's eager attention: [1, heads, tokens, head_dim] of each, `mask` is added."""
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    group_size = query.shape[1] // key.shape[1]
    keys = round_to_int8(key).repeat_interleave(group_size, 1)
    scores = round_to_int8(query) @ keys.transpose(2, 3) * scaling + mask
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    codes, scales = _codes(value, value.shape[-1])
    codes = codes[..., 0, :].repeat_interleave(group_size, 1)
    factors = scales[..., 0, 0].repeat_interleave(group_size, 1)
    weighted = round_to_int8(powers * factors[:, :, None, :])
    result = weighted @ codes / powers.sum(-1, keepdim=True)
    return result.transpose(1, 2).contiguous(), None


@contextmanager
def rounded(model: Any) -> Iterator[Any]:
    """A float64 copy of a model that rounds where the device does, while the context lasts."""
    copied = copy.deepcopy(model).double()
    copied.set_attn_implementation("eager")
    for module in list(copied.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, RoundedLinear(child))
            elif name == "embed_tokens_per_layer":
                child.weight = torch.nn.Parameter(round_to_int8(child.weight.detach()), requires_grad=False)
    source: Any = sys.modules[type(model).__module__]
    before = source.eager_attention_forward
    source.eager_attention_forward = attention
    try:
        yield copied
    finally:
        source.eager_attention_forward = before


def rounded_logits(model: Any, token_ids: NDArray[Any]) -> NDArray[Any]:
    """float64 [tokens, vocab_size]."""
    with rounded(model) as copied, torch.no_grad():
        logits: NDArray[Any] = copied(torch.from_numpy(token_ids)[None]).logits[0].numpy()
    return logits

"""Random but possible models, for properties that must hold for every layout."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from npuserve.models.facts import LayerFormats, ModelFacts
from npuserve.models.registry import model_facts
from npuserve.quant.formats import FORMATS
from tiny_checkpoint import tiny_config


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """Facts of every family with odd sizes and any weight formats, up to those of a model with a billion weights."""
    kv_heads = draw(st.integers(1, 8))
    changes: dict[str, Any] = {
        "hidden_size": draw(st.integers(2, 2048)),
        "intermediate_size": draw(st.integers(1, 8192)),
        "num_hidden_layers": draw(st.integers(1, 40)),
        "num_attention_heads": kv_heads * draw(st.integers(1, 8)),
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * draw(st.integers(1, 128)),
        "vocab_size": draw(st.integers(1, 60_000)),
        "attention_bias": draw(st.booleans()),
    }
    facts = model_facts(tiny_config(draw(st.sampled_from(["llama", "qwen2", "qwen3"])), **changes))
    kept = st.sampled_from(list(FORMATS.values()))
    formats = LayerFormats(draw(kept), draw(kept), draw(kept), paired=draw(st.booleans()))
    return replace(facts, formats=formats, head_format=draw(kept))

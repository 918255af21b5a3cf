"""Qwen2 and Qwen2.5: Llama with biases on q, k and v."""

from dataclasses import replace

from npuserve.models.facts import Config, ModelFacts
from npuserve.models.llama import dense


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type qwen2."""
    return replace(dense(config), qkv_bias=True)

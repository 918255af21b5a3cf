"""Families by model type; a family's module is imported when it is asked for."""

from importlib import import_module

from npuserve.errors import UnsupportedModelError
from npuserve.models.facts import Config, ModelFacts

FAMILIES = ("llama", "qwen2", "qwen3", "smollm3", "phi3", "lfm2", "gemma4", "gemma4_text", "qwen3_5", "qwen3_5_text")
SHARED_MODULES = {"gemma4_text": "gemma4", "qwen3_5_text": "qwen3_5"}
"""Model types that a module of another name describes."""


def model_facts(config: Config) -> ModelFacts:
    """Facts of the model that a config.json describes; UnsupportedModelError lists the families there are."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"model type {model_type!r} is not served by this version; it serves {', '.join(FAMILIES)}"
        )
    module = SHARED_MODULES.get(model_type, model_type)
    facts: ModelFacts = import_module(f"npuserve.models.{module}").facts(config)
    return facts

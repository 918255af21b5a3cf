"""SmolLM3: Llama in which some layers, by default every fourth, do not rotate q and k."""

from dataclasses import replace

import numpy as np

from npuserve.errors import CheckpointError
from npuserve.models.facts import Config, ModelFacts, positive
from npuserve.models.llama import facts as llama_facts

DEFAULT_THETA = 2_000_000.0


def facts(config: Config) -> ModelFacts:
    """Facts from a config.json with model_type smollm3."""
    base = llama_facts({"rope_theta": DEFAULT_THETA, "tie_word_embeddings": True, **config})
    rotates = _rotates(config, base.num_layers)
    still = replace(base, inverse_frequencies=np.zeros(0))
    return replace(base, variants=(still,), layer_kinds=tuple(0 if rotate else 1 for rotate in rotates))


def _rotates(config: Config, num_layers: int) -> list[bool]:
    """For each layer whether it has positions: `no_rope_layers` has, against its name, a 1 for those that do."""
    listed = config.get("no_rope_layers")
    if listed is None:
        interval = positive(config, "no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(listed, list) or len(listed) < num_layers:
        raise CheckpointError(f"config.json: no_rope_layers is {listed!r}, but must be a list of {num_layers} numbers")
    return [bool(entry) for entry in listed[:num_layers]]

"""Tiny random models of the families whose layers are not all alike: several layers of each kind, odd sizes."""

from typing import Any

FAMILY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3, every fourth layer without positions": ("smollm3", {"num_hidden_layers": 8}),
    "smollm3, an irregular list of layers": (
        "smollm3",
        {"num_hidden_layers": 5, "no_rope_layers": [0, 1, 1, 0, 0], "head_dim": 64, "tie_word_embeddings": True},
    ),
}

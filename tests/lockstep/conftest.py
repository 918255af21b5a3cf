"""Tiny checkpoints of every family, written once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_checkpoint import tiny_config, write_checkpoint

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128, "tie_word_embeddings": True},
    "qwen3": {"head_dim": 64, "hidden_size": 128, "intermediate_size": 256},
}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny checkpoint; images are built beside it once."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            path = tmp_path_factory.mktemp(family)
            folders[family] = write_checkpoint(path, tiny_config(family, **FAMILIES[family]))
        return folders[family]

    return folder

"""SmolLM2's GGUF as transformers reads it, tensor by tensor: names, shapes, row order, values, configuration."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.checkpoints.locate import ensure_checkpoint

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_checkpoint("smollm2")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Iterator[Checkpoint]:
    opened = open_checkpoint(folder)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def theirs(folder: Path) -> dict[str, Any]:
    """`config` and `tensors` as transformers converts them."""
    (path,) = folder.glob("*.gguf")
    config = LlamaConfig(**load_gguf_checkpoint(str(path))["config"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    return {"config": config, "tensors": {name: values.numpy() for name, values in read["tensors"].items()}}


def test_every_tensor_equals_transformers(checkpoint: Checkpoint, theirs: dict[str, Any]) -> None:
    assert set(checkpoint.tensor_names()) == set(theirs["tensors"])
    for name, values in theirs["tensors"].items():
        assert checkpoint.shape(name) == values.shape, name
        np.testing.assert_array_equal(checkpoint.tensor(name), values, err_msg=name)


def test_configuration_equals_transformers(checkpoint: Checkpoint, theirs: dict[str, Any]) -> None:
    config = theirs["config"]
    for key, value in checkpoint.config.items():
        if key not in ("architectures", "rope_theta", "rope_scaling", "rms_norm_eps"):
            assert value == getattr(config, key), key
    assert np.float32(checkpoint.config["rms_norm_eps"]) == np.float32(config.rms_norm_eps)
    assert config.rope_parameters == {"rope_theta": checkpoint.config["rope_theta"], "rope_type": "default"}
    assert checkpoint.config["rope_scaling"] is None

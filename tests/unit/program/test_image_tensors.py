"""Which tensors of a checkpoint an image is made of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.errors import CheckpointError
from npuserve.models.registry import model_facts
from npuserve.program.dram import DramLayout
from npuserve.program.geometry import Geometry
from npuserve.program.image import build_image
from tiny_checkpoint import Tensors, random_tensors, tiny_config, write_checkpoint


def built(folder: Path, tensors: Tensors, **config: Any) -> bytes:
    """The image's bytes but for the page with its header."""
    full = tiny_config(**config)
    checkpoint = open_checkpoint(write_checkpoint(folder, full, tensors))
    facts = model_facts(full)
    dram = DramLayout(Geometry(facts, 256), num_slots=1, max_rows=4)
    image = build_image(folder / "x.img", "key", checkpoint, facts, dram, lambda done, total: None)
    return image.path.read_bytes()[4096:]


def fused(tensors: Tensors, parts: tuple[str, ...], whole: str) -> Tensors:
    """The matrices named `parts` of each layer stacked into one."""
    names = [name for name in tensors if name.endswith(f"{parts[0]}.weight")]
    result = dict(tensors)
    for name in names:
        rows = [result.pop(name.replace(parts[0], part)) for part in parts]
        result[name.replace(parts[0], whole)] = np.concatenate(rows)
    return result


def test_fused_tensors_make_the_image_of_separate_ones(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config())
    together = fused(
        fused(tensors, ("q_proj", "k_proj", "v_proj"), "qkv_proj"), ("gate_proj", "up_proj"), "gate_up_proj"
    )
    separate = built(tmp_path / "llama", tensors)
    assert built(tmp_path / "phi3", together, model_type="phi3") == separate


def test_a_tensor_that_nothing_asks_for_is_an_error(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config()) | {"model.layers.0.mlp.router.weight": np.zeros((4, 96), np.float32)}
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.router\.weight is no tensor of llama"):
        built(tmp_path, tensors)
    assert not (tmp_path / "x.img").exists()


def test_tensors_that_follow_from_the_configuration_are_left(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config(tie_word_embeddings=True))
    same = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    same["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(16, np.float32)
    expected = built(tmp_path / "one", tensors, tie_word_embeddings=True)
    assert built(tmp_path / "other", tensors | same, tie_word_embeddings=True) == expected

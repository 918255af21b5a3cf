"""Transformers' own models as oracles: tiny random ones, and any checkpoint of ours loaded into one."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import Checkpoint
from tiny_checkpoint import tiny_config

CLASSES = {
    "gemma4": (transformers.Gemma4Config, transformers.Gemma4ForConditionalGeneration),
    "gemma4_text": (transformers.Gemma4TextConfig, transformers.Gemma4ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "lfm2": (transformers.Lfm2Config, transformers.Lfm2ForCausalLM),
    "qwen3_5": (transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration),
    "qwen3_5_text": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
}


IDS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}


def save_tiny_model(folder: Path, model_type: str, **changes: Any) -> Any:
    """A random float32 model, saved to `folder`, with norms and biases that are not their initial 1 and 0.

    Where scores are not scaled, q's norm has the scale in it, as in a trained model.
    """
    config_class, model_class = CLASSES[model_type]
    config = tiny_config(model_type, **changes)
    config.pop("rope_theta")
    config["norm_eps"] = config["rms_norm_eps"]
    config |= {key: value for key, value in IDS.items() if key not in changes}
    torch.manual_seed(0)
    if model_type == "gemma4":
        config = {"text_config": config, "vision_config": None, "audio_config": None}
    model = model_class(config_class(**config)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                zero_centred = "qwen3_5" in model_type and "linear_attn" not in name
                parameter.copy_((0 if zero_centred else 1) + 0.2 * torch.randn_like(parameter))
                if "gemma4" in model_type and "q_norm" in name:
                    parameter.mul_(len(parameter) ** -0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model


def load_checkpoint(checkpoint: Checkpoint) -> Any:
    """A float32 model with the dequantized weights of a checkpoint."""
    config = dict(checkpoint.config)
    config_class, model_class = CLASSES[config.pop("model_type")]
    model = model_class(config_class(**config)).float().eval()
    state = {name: torch.from_numpy(checkpoint.tensor(name)) for name in checkpoint.tensor_names()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    model.tie_weights()
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


def logits_of(model: Any, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """float32 [tokens, vocab_size]."""
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.from_numpy(token_ids)[None]).logits[0].numpy()
    return logits

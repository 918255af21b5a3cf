"""GGUF metadata in the terms of Hugging Face: config.json, generation_config.json and tensor names."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from npuserve.checkpoints.gguf_header import GgufHeader
from npuserve.errors import CheckpointError, UnsupportedModelError

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
}
_MODEL_TYPES = {"gemma4": "gemma4_text"}
"""Where the model type is not the architecture's name."""

_MAX_SIZE = 1 << 31
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LFM2_NAMES = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
_GEMMA4_NAMES = _LAYER_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA4_TOP_NAMES = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_NAMES = {
    "lfm2": ({"token_embd_norm": "model.embedding_norm"}, _LFM2_NAMES),
    "gemma4": (_GEMMA4_TOP_NAMES, _GEMMA4_NAMES),
}
"""Where an architecture's names differ: those at the top, which add to the usual ones, and those in layers."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_TOKEN_IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
_LAYER = re.compile(r"blk\.(\d+)\.([\w.]+)\.(weight|bias)")


def hugging_face_name(name: str, architecture: object = None) -> str:
    """`blk.0.attn_q.weight` to `model.layers.0.self_attn.q_proj.weight`; a name that is not known stays as it is."""
    top_names, layer_names = _NAMES.get(str(architecture), ({}, _LAYER_NAMES))
    layer = _LAYER.fullmatch(name)
    if layer and layer[2] in layer_names:
        return f"model.layers.{layer[1]}.{layer_names[layer[2]]}.{layer[3]}"
    if layer and layer[2] == "layer_output_scale":
        return f"model.layers.{layer[1]}.layer_scalar"
    stem, _, kind = name.rpartition(".")
    top_names = _TOP_NAMES | top_names
    return f"{top_names[stem]}.{kind}" if stem in top_names else name


def translate_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Recommended sampling (`general.sampling.*`) and the end-of-text id."""
    found = {ours: metadata.get(f"general.sampling.{theirs}") for theirs, ours in _SAMPLING.items()}
    generation = {key: _shortest(value) for key, value in found.items() if isinstance(value, int | float)}
    if type(end := metadata.get("tokenizer.ggml.eos_token_id")) is int:
        generation["eos_token_id"] = end
    return generation


def translate_config(header: GgufHeader, path: object) -> dict[str, Any]:
    """config.json of a file of one of the ARCHITECTURES; raises UnsupportedModelError for other architectures."""
    return _Translation(header, path).config()


class _Translation:
    def __init__(self, header: GgufHeader, path: object) -> None:
        self._metadata, self._tensors, self._path = header.metadata, header.tensors, path
        architecture = self._metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"{path}: GGUF architecture {architecture!r} is not read; known are {', '.join(ARCHITECTURES)};"
                " for other families use the safetensors folder"
            )
        self._architecture = architecture

    def config(self) -> dict[str, Any]:
        num_heads = self._size("attention.head_count")
        hidden_size = self._size("embedding_length")
        config: dict[str, Any] = {
            "model_type": _MODEL_TYPES.get(self._architecture, self._architecture),
            "architectures": [ARCHITECTURES[self._architecture]],
            "vocab_size": self._vocab_size(),
            "hidden_size": hidden_size,
            "intermediate_size": (self._per_layer("feed_forward_length") or [self._size("feed_forward_length")])[0],
            "num_hidden_layers": self._size("block_count"),
            "num_attention_heads": num_heads,
            "num_key_value_heads": self._num_kv_heads(num_heads),
            "head_dim": self._size("attention.key_length", hidden_size // num_heads or None),
            "max_position_embeddings": self._size("context_length"),
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "rope_theta": self._number("rope.freq_base", 10_000.0),
            "hidden_act": "silu",
            "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "rope_scaling": self._rope_scaling(),
        }
        if self._architecture == "lfm2":
            config |= self._lfm2()
        if self._architecture == "gemma4":
            config |= self._gemma4()
        ids = {ours: self._metadata.get(f"tokenizer.ggml.{theirs}") for theirs, ours in _TOKEN_IDS.items()}
        config |= {key: value if type(value) is int else None for key, value in ids.items()}
        self._check(config)
        return config

    def _check(self, config: Mapping[str, Any]) -> None:
        experts = self._get("expert_count")
        if experts is not None and not (type(experts) is int and experts == 0):
            raise UnsupportedModelError(
                f"{self._path}: a mixture of experts in a GGUF file is not read; use the safetensors folder"
            )
        head_dim = config["head_dim"]
        key = "rope.dimension_count_swa" if self._architecture == "gemma4" else "rope.dimension_count"
        if (rotary := self._size(key, head_dim)) != head_dim:
            raise UnsupportedModelError(
                f"{self._path}: RoPE on {rotary} of {head_dim} dimensions is not read from GGUF"
            )
        if head_dim % 2:
            raise self._error("attention.key_length", head_dim, "an even number")
        if config["num_attention_heads"] % config["num_key_value_heads"]:
            raise self._error(
                "attention.head_count_kv", config["num_key_value_heads"], "a divisor of the number of heads"
            )
        bias = [
            name
            for name in self._tensors
            if name.endswith(("attn_output.bias", "ffn_up.bias", "ffn_gate.bias", "ffn_down.bias"))
        ]
        if bias:
            raise UnsupportedModelError(f"{self._path}: {bias[0]} is a bias that this family has not")

    def _num_kv_heads(self, num_heads: int) -> int:
        """Of the layers that have any, where each layer has its own number."""
        counts = self._per_layer("attention.head_count_kv")
        if counts is None:
            return self._size("attention.head_count_kv", num_heads)
        different = set(counts) - {0}
        if len(different) != 1:
            raise self._error("attention.head_count_kv", counts, "one number for all layers with attention")
        return different.pop()

    def _per_layer(self, key: str) -> list[int] | None:
        """A number for each layer; None where the file has one for all of them."""
        values = self._get(key)
        if not isinstance(values, np.ndarray):
            return None
        numbers: list[int] = values.tolist()
        if len(numbers) != self._size("block_count") or not all(
            isinstance(number, int) and 0 <= number < _MAX_SIZE for number in numbers
        ):
            raise self._error(key, numbers, "a whole number for each layer")
        return numbers

    def _lfm2(self) -> dict[str, Any]:
        """Layers without key-value heads are convolutions; the MLP's size is the adjusted one."""
        counts = self._per_layer("attention.head_count_kv") or [1] * self._size("block_count")
        return {
            "layer_types": ["full_attention" if count else "conv" for count in counts],
            "conv_L_cache": self._size("shortconv.l_cache"),
            "conv_bias": "blk.0.shortconv.in_proj.bias" in self._tensors,
            "block_auto_adjust_ff_dim": False,
        }

    def _gemma4(self) -> dict[str, Any]:
        """Sliding layers have keys of their own; later layers share keys and values, some files with a wider MLP."""
        sizes, sliding = self._per_layer("feed_forward_length"), self._per_layer("attention.sliding_window_pattern")
        if sliding is None:
            raise self._error("attention.sliding_window_pattern", sliding, "a mark for each layer")
        turns: dict[str, dict[str, Any]] = {
            "sliding_attention": {"rope_type": "default", "rope_theta": self._number("rope.freq_base_swa", 10_000.0)},
            "full_attention": {"rope_type": "proportional", "rope_theta": self._number("rope.freq_base", 1e6)},
        }
        cap = "final_logit_softcapping"
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "head_dim": self._size("attention.key_length_swa"),
            "global_head_dim": self._size("attention.key_length"),
            "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding],
            "sliding_window": self._size("attention.sliding_window"),
            "num_kv_shared_layers": self._get("attention.shared_kv_layers") or 0,
            "use_double_wide_mlp": sizes is not None and sizes[-1] == 2 * sizes[0],
            "hidden_size_per_layer_input": self._get("embedding_length_per_layer_input") or 0,
            cap: None if self._get(cap) is None else self._number(cap),
            "rope_parameters": turns,
        }

    def _vocab_size(self) -> int:
        embedding = self._tensors.get("token_embd.weight")
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if embedding is not None and len(embedding.shape) == 2:
            return embedding.shape[0]
        return self._size("vocab_size", len(tokens) if isinstance(tokens, list) and tokens else None)

    def _rope_scaling(self) -> dict[str, Any] | None:
        """Factors stored as a tensor (Llama 3) are LongRoPE with one list; linear and YaRN are numbers."""
        kind = self._get("rope.scaling.type")
        if kind is None or (isinstance(kind, str) and kind == "none"):
            return None
        if not isinstance(kind, str):
            raise self._error("rope.scaling.type", kind, "a name")
        scaling = {"rope_type": kind, "factor": self._number("rope.scaling.factor")}
        if self._get("rope.scaling.original_context_length") is not None:
            scaling["original_max_position_embeddings"] = self._size("rope.scaling.original_context_length")
        return scaling

    def _get(self, key: str) -> Any:
        return self._metadata.get(f"{self._architecture}.{key}")

    def _size(self, key: str, default: int | None = None) -> int:
        value = self._get(key)
        value = default if value is None else value
        if type(value) is not int or not 0 < value < _MAX_SIZE:
            raise self._error(key, value, f"a whole number from 1 to {_MAX_SIZE - 1}")
        return value

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._error(key, value, "a finite number above 0")
        return float(_shortest(value))

    def _error(self, key: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path}: {self._architecture}.{key} is {value!r}, not {wanted}; fetch the file again"
        )


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value

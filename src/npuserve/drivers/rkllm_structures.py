"""librkllmrt's structs in its three binary layouts (64-bit Linux ABI, natural alignment).

Using the wrong layout corrupts memory, so it is always named; `rkllm_layout` finds out which one a library file has.
"""

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from typing import Any

from npuserve.drivers.rkllm_layout import Layout

_Fields = list[tuple[str, Any]]


def _struct(name: str, fields: _Fields) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _union(name: str, fields: _Fields) -> Any:
    return type(name, (ctypes.Union,), {"_fields_": fields})


_SAMPLING: _Fields = [
    ("top_k", c_int32),
    ("top_p", c_float),
    ("temperature", c_float),
    ("repeat_penalty", c_float),
    ("frequency_penalty", c_float),
    ("presence_penalty", c_float),
    ("mirostat", c_int32),
    ("mirostat_tau", c_float),
    ("mirostat_eta", c_float),
]
_SPAN_TEXTS: _Fields = [("start", c_char_p), ("end", c_char_p), ("content", c_char_p)]
_PICTURE_SIZE: _Fields = [("width", c_size_t), ("height", c_size_t)]


class Structures:
    """The structs of one layout as ctypes classes."""

    def __init__(self, layout: Layout) -> None:
        old, new = layout is Layout.V1_2_0, layout is Layout.V1_3
        extend: _Fields = [
            ("base_domain_id", c_int32),
            ("embed_flash", c_int8),
            ("enabled_cpus_num", c_int8),
            ("enabled_cpus_mask", c_uint32),
        ]
        if old:
            extend += [("reserved", c_uint8 * 106)]
        else:
            extend += [("n_batch", c_uint8), ("use_cross_attn", c_int8), ("reserved", c_uint8 * 104)]
        param: _Fields = [("model_path", c_char_p)]
        param += [(name, c_int32) for name in ("max_context_len", "max_new_tokens", "top_k", "n_keep")]
        param += [*_SAMPLING[1:], ("skip_special_token", c_bool)]
        param += [("ignore_eos_token", c_bool)] if new else []
        param += [("is_async", c_bool)]
        param += [] if new else [(name, c_char_p) for name in ("img_start", "img_end", "img_content")]
        self.param = _struct("Param", [*param, ("extend", _struct("ExtendParam", extend))])

        tokens = _struct("TokenInput", [("ids", POINTER(c_int32)), ("n_tokens", c_size_t)])
        embed = _struct("EmbedInput", [("embed", POINTER(c_float)), ("n_tokens", c_size_t)])
        payload: _Fields = [("prompt", c_char_p), ("embed", embed), ("tokens", tokens)]
        payload += [("multimodal", _multimodal(layout))]
        head: _Fields = [] if old else [("role", c_char_p), ("enable_thinking", c_bool)]
        self.input = _struct("Input", [*head, ("kind", c_int), ("of", _union("InputUnion", payload))])

        self.sampling = _struct("SamplingParam", _SAMPLING)
        infer: _Fields = [("mode", c_int), ("lora", c_void_p), ("prompt_cache", c_void_p)]
        infer += [("sampling", POINTER(self.sampling))] if new else []
        infer += [("keep_history", c_int)]
        infer += [("max_new_tokens", c_int32)] if new else []
        self.infer = _struct("InferParam", infer)

        hidden = _struct("Hidden", [("values", POINTER(c_float)), ("embd_size", c_int), ("num_tokens", c_int)])
        logits = _struct("Logits", [("values", POINTER(c_float)), ("vocab_size", c_int), ("num_tokens", c_int)])
        perf = _struct(
            "PerfStat",
            [
                ("prefill_ms", c_float),
                ("prefill_tokens", c_int),
                ("generate_ms", c_float),
                ("generate_tokens", c_int),
                ("memory_mb", c_float),
            ],
        )
        result: _Fields = [("text", c_char_p), ("token_id", c_int32), ("hidden", hidden), ("logits", logits)]
        self.result = _struct("Result", result if old else [*result, ("perf", perf)])
        returned = None if old else c_int
        self.result_callback: Any = ctypes.CFUNCTYPE(returned, POINTER(self.result), c_void_p, c_int)
        self.callback = _struct(
            "Callback",
            [
                ("result", self.result_callback),
                ("result_userdata", c_void_p),
                ("tokenizer", c_void_p),
                ("tokenizer_userdata", c_void_p),
                ("embed", c_void_p),
                ("embed_userdata", c_void_p),
            ],
        )


def _multimodal(layout: Layout) -> Any:
    """Never filled here, but it sets the size of the union."""
    if layout is not Layout.V1_3:
        sizes: _Fields = [(f"n_{name}", c_size_t) for name in ("image_tokens", "image")]
        sizes += [(f"image_{name}", c_size_t) for name in ("width", "height")]
        return _struct("Multimodal", [("prompt", c_char_p), ("image_embed", POINTER(c_float)), *sizes])
    image: _Fields = [("embed", POINTER(c_float)), ("n_tokens", c_size_t), ("n_image", c_size_t)]
    video: _Fields = [("embed", POINTER(c_float)), ("n_frame_tokens", c_size_t)]
    video += [("n_frames_per_video", c_size_t), ("n_video", c_size_t)]
    parts: _Fields = [
        ("image", _struct("ImageInput", [*image, *_SPAN_TEXTS, *_PICTURE_SIZE])),
        ("video", _struct("VideoInput", [*video, *_SPAN_TEXTS, *_PICTURE_SIZE])),
    ]
    return _struct("Multimodal", [("prompt", c_char_p), *parts])

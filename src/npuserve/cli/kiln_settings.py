"""The settings of kiln-serve: Kiln's own keys, and the common server's under [server].

One table makes flags, keys and help: a field carries its section and key beside what an Option says.
"""

from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from npuserve.cli.kiln_ini import DEFAULT_PATH
from npuserve.config import Option, ServeSettings, option_of
from npuserve.home import expanded
from npuserve.vision.detector_names import DETECTORS

# Options of otpu-serve that mean nothing on a board, or are spelled otherwise there.
_NOT_HERE = frozenset(
    ("model", "cap", "wformat", "head_format", "pool", "warm_cap", "mtp", "mtp_from", "backend", "dev", "max_slices")
)
# What differs from otpu-serve where Kiln's contract says so.
COMMON_DEFAULTS: dict[str, Any] = {"host": "0.0.0.0", "port": 8080, "cors_origin": ("*",)}


def _setting(default: Any, section: str, text: str, *, key: str | None = None, **facts: Any) -> Any:
    return field(default=default, metadata={"option": Option(section, text, **facts), "key": key})


_LLM, _VISION, _SERVER = "llm", "vision", "server"


@dataclass(frozen=True, slots=True)
class KilnSettings:
    """Everything kiln-serve can be told; the values are checked."""

    model: str | None = _setting(
        None, _LLM, "path of the .rkllm, or to run without an NPU: a .gguf file or checkpoint folder", metavar="PATH"
    )
    system_prompt: str | None = _setting(None, _LLM, "used when a request has no system message", metavar="TEXT")
    max_context_len: int = _setting(2048, _LLM, "longest context in tokens", metavar="N", least=16, most=16384)
    max_new_tokens: int = _setting(
        512, _LLM, "tokens of a reply whose request does not say", metavar="N", least=1, most=16384
    )
    temperature: float = _setting(0.7, _LLM, "default of requests", metavar="X", least=0, most=5)
    top_k: int = _setting(1, _LLM, "default of requests; 1 is greedy", metavar="N", least=1, most=1000)
    top_p: float = _setting(0.8, _LLM, "default of requests", metavar="X", least=0.001, most=1)
    repeat_penalty: float = _setting(1.3, _LLM, "default of requests", metavar="X", least=0.001, most=10)
    frequency_penalty: float = _setting(0.0, _LLM, "default of requests", metavar="X", least=-2, most=2)
    presence_penalty: float = _setting(0.0, _LLM, "default of requests", metavar="X", least=-2, most=2)
    keep_history: int = _setting(
        1, _LLM, "for Kiln's chat; the server keeps nothing between requests", metavar="0|1", least=0, most=1
    )
    n_keep: int = _setting(-1, _LLM, "tokens kept when the runtime shifts its context", metavar="N", least=-1)
    embed_flash: int = _setting(1, _LLM, "read the embedding from flash", metavar="0|1", least=0, most=1)
    library: str | None = _setting(None, _LLM, "path of librkllmrt.so (default: the usual folders)", metavar="PATH")
    runtime: str = _setting("auto", _LLM, "binary layout of librkllmrt", choices=("auto", "1.2.0", "1.2", "1.3"))
    sampling: str = _setting(
        "runtime",
        _LLM,
        "who chooses tokens: the NPU's runtime, or this server from its logits (needs a tokenizer)",
        choices=("runtime", "host"),
    )
    tokenizer: str | None = _setting(
        None, _LLM, "tokenizer.json or the folder of one (default: beside the model)", metavar="PATH"
    )
    family: str = _setting("auto", _LLM, "prompt format where no tokenizer is found", metavar="NAME")

    vision_model: str | None = _setting(None, _VISION, "path of the .rknn, or of an .onnx", key="model", metavar="PATH")
    labels: str = _setting("/opt/models/imagenet_labels.txt", _VISION, "file of one label a line", metavar="PATH")
    top_n: int = _setting(5, _VISION, "classes in a reply whose request does not say", metavar="N", least=1, most=1000)
    core_mask: str = _setting(
        "auto", _VISION, "NPU cores of the vision model", choices=("auto", "0", "1", "2", "0_1", "0_1_2")
    )
    priority: str = _setting("high", _VISION, "of the vision model on the NPU", choices=("high", "medium", "low"))
    task: str = _setting("classify", _VISION, "what the vision model does", choices=("classify", "detect"))
    detector: str = _setting("auto", _VISION, "form of a detector's outputs", choices=tuple(DETECTORS))
    conf_threshold: float = _setting(0.25, _VISION, "least score of an object", metavar="X", least=0, most=1)
    nms_iou: float = _setting(0.45, _VISION, "overlap above which one object is told", metavar="X", least=0, most=1)

    input_size: str = _setting("auto", _VISION, "N or WIDTHxHEIGHT, of a model that does not tell it", metavar="SIZE")
    mean: str = _setting("auto", _VISION, "of an .onnx model's input, from 0 to 255: X or R,G,B", metavar="X")
    std: str = _setting("auto", _VISION, "of an .onnx model's input, from 0 to 255: X or R,G,B", metavar="X")

    llm_model: str | None = _setting(None, _SERVER, "in place of [llm] model", metavar="PATH")
    server_vision_model: str | None = _setting(
        None, _SERVER, "in place of [vision] model", key="vision_model", metavar="PATH"
    )

    config_path: Path = field(default=DEFAULT_PATH)
    common: ServeSettings = field(default_factory=lambda: ServeSettings(**COMMON_DEFAULTS))

    @property
    def llm_path(self) -> Path | None:
        """The language model that is asked for, None for none."""
        chosen = self.llm_model or self.model
        return expanded(chosen) if chosen else None

    @property
    def vision_path(self) -> Path | None:
        """The vision model that is asked for, None for none."""
        chosen = self.server_vision_model or self.vision_model
        return expanded(chosen) if chosen else None


def own_settings() -> "list[Field[Any]]":
    """The fields that are Kiln's."""
    return [setting for setting in fields(KilnSettings) if "option" in setting.metadata]


def common_settings() -> "list[Field[Any]]":
    """The fields of the common server that kiln-serve takes too."""
    return [setting for setting in fields(ServeSettings) if setting.name not in _NOT_HERE]


def ini_place(setting: "Field[Any]") -> tuple[str, str]:
    """(section, key) of a field in the configuration file."""
    if "key" not in setting.metadata:
        return _SERVER, setting.name
    return option_of(setting).group, setting.metadata["key"] or setting.name

"""The settings of otpu-serve: one frozen dataclass, one field per option.

A field carries its default, its help, its range and, where its part is not built yet, the sentence that refuses it;
flags and help are made from that.
"""

import re
from collections.abc import Set
from dataclasses import Field, dataclass, field, fields
from typing import Any

from npuserve.errors import ConfigError

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option besides its name, type and default.

    `least` and `most` bound a number. `unbuilt` names a part that is not there yet: giving the option is refused
    unless the value is one of `works_with`. `environment` is a variable that stands in for the flag. A `repeated`
    option may be given several times, each time with one value or several between commas.
    """

    group: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    unbuilt: str | None = None
    works_with: tuple[Any, ...] = ()
    environment: str | None = None
    repeated: bool = False


def _option(default: Any, group: str, text: str, **facts: Any) -> Any:
    return field(default=default, metadata={"option": Option(group, text, **facts)})


_MODEL, _SERVER, _SCHEDULE, _CONTEXTS, _CHAT, _HARDWARE = (
    "model",
    "server",
    "scheduling",
    "saved contexts",
    "chat",
    "hardware",
)
_FORMATS = ("int8", "fp4", "int4", "nvfp4")
_EXPERTS = "streaming experts from a pool"
_DRAFTER = "multi-token prediction"
_VISION = "image input"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything otpu-serve can be told; the values are checked."""

    model: str = _option(
        "qwen3", _MODEL, "short name (see otpu-pull --list), checkpoint directory or .gguf file", metavar="NAME"
    )
    served_model_name: str | None = _option(
        None, _MODEL, "model id in the API (default: the checkpoint directory's name)", metavar="NAME"
    )
    cap: int = _option(2048, _MODEL, "longest context in tokens", metavar="N", least=1, most=1 << 20)
    wformat: str = _option(
        "auto",
        _MODEL,
        "weight format of the layers; mix is what is recommended for the model, auto what the checkpoint has in 4 bits,"
        " else that or int8",
        choices=("auto", *_FORMATS, "mix"),
    )
    head_format: str | None = _option(
        None,
        _MODEL,
        "weight format of the LM head (default: as --wformat)",
        choices=_FORMATS,
    )
    pool: str | None = _option(
        None, _MODEL, "expert pool of a streamed mixture-of-experts model", metavar="FILE", unbuilt=_EXPERTS
    )
    warm_cap: float = _option(
        300.0,
        _MODEL,
        "streamed experts: seconds during which /health may say warming; 0 never",
        metavar="SEC",
        least=0,
        unbuilt=_EXPERTS,
    )
    mtp: bool = _option(False, _MODEL, "decode with Qwen3.5's multi-token prediction drafter", unbuilt=_DRAFTER)
    mtp_from: str | None = _option(
        None, _MODEL, "with --mtp: checkpoint of the drafter when the model has none", metavar="DIR", unbuilt=_DRAFTER
    )

    backend: str = _option(
        "isa",
        _HARDWARE,
        "where to run: instruction-set simulator, card, Verilator board model",
        choices=("isa", "board", "board-sim"),
        unbuilt="a backend other than isa",
        works_with=("isa",),
    )
    dev: str = _option(
        "/dev/xdma0",
        _HARDWARE,
        "XDMA device prefix for --backend board",
        metavar="PATH",
        unbuilt="the board backend, which this option is for,",
    )
    threads: int = _option(
        0, _HARDWARE, "CPU threads of --backend isa; 0 is one per core", metavar="N", least=0, most=256
    )

    host: str = _option("127.0.0.1", _SERVER, "address to listen on", metavar="ADDR")
    port: int = _option(8000, _SERVER, "TCP port; 0 takes a free one", metavar="N", least=0, most=65535)
    api_key: tuple[str, ...] | None = _option(
        None,
        _SERVER,
        "key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`; may be repeated"
        " (default: $OTPU_API_KEY)",
        metavar="KEY",
        environment="OTPU_API_KEY",
        repeated=True,
    )
    api_key_file: str | None = _option(
        None, _SERVER, "file of further keys, one a line; a line that begins with # is a comment", metavar="FILE"
    )
    share_cache: bool = _option(False, _SERVER, "let clients with different keys reuse each other's contexts")
    tls_cert: str | None = _option(
        None, _SERVER, "serve https with this certificate chain (PEM); needs --tls-key", metavar="FILE"
    )
    tls_key: str | None = _option(None, _SERVER, "private key of --tls-cert (PEM, not encrypted)", metavar="FILE")
    cors_origin: tuple[str, ...] | None = _option(
        None,
        _SERVER,
        "web origin whose pages may use the server, such as https://chat.example, or * for any; may be repeated",
        metavar="ORIGIN",
        repeated=True,
    )
    allow_host: tuple[str, ...] | None = _option(
        None,
        _SERVER,
        "further Host that requests to a server on loopback may name (a reverse proxy's); may be repeated",
        metavar="NAME",
        repeated=True,
    )
    request_timeout: float = _option(
        0.0, _SERVER, "seconds after which a request is ended wherever it is; 0 is never", metavar="SEC", least=0
    )
    grace: float = _option(
        8.0, _SERVER, "seconds that running replies may take after SIGTERM", metavar="SEC", least=0, most=86400
    )
    metrics_names: str = _option(
        "npuserve", _SERVER, "names in /metrics: our own, or vllm's as well", choices=("npuserve", "vllm")
    )
    log_level: str = _option(
        "warning", _SERVER, "least severe message to log", choices=("debug", "info", "warning", "error")
    )

    slots: int = _option(
        8,
        _SCHEDULE,
        "sequences decoded together, each in its own KV slot; fewer where the card has no room",
        metavar="N",
        least=1,
        most=1024,
    )
    max_queue: int = _option(
        256, _SCHEDULE, "requests that may wait for a slot; more get 503", metavar="N", least=0, most=1_000_000
    )
    chunked_prefill_size: int = _option(
        64, _SCHEDULE, "prompt tokens fed between two decode steps", metavar="N", least=1, most=65536
    )
    mixed: bool = _option(False, _SCHEDULE, "feed a waiting prompt in the spare rows of a decode step")
    max_running: int = _option(
        8, _SCHEDULE, "without slots: requests that run in turns", metavar="N", least=1, most=1024
    )
    quantum: int = _option(32, _SCHEDULE, "without slots: tokens decoded per turn", metavar="N", least=1, most=65536)

    kv_ram_gb: float = _option(
        4.0,
        _CONTEXTS,
        "host RAM for saved contexts",
        metavar="N",
        least=0,
        most=1 << 20,
    )
    kv_disk_gb: float = _option(
        0.0,
        _CONTEXTS,
        "disk for contexts past the RAM; 0 is none",
        metavar="N",
        least=0,
        most=1 << 20,
    )
    kv_dir: str = _option(
        "~/otpu-build/kvcache",
        _CONTEXTS,
        "folder of the disk tier, kept across restarts",
        metavar="PATH",
    )

    think: bool = _option(False, _CHAT, "let the model think unless a request says otherwise (enable_thinking)")
    reasoning_parser: str | None = _option(
        None,
        _CHAT,
        "move thoughts into reasoning_content",
        choices=("qwen3",),
    )
    max_slices: int = _option(
        9,
        _CHAT,
        "MiniCPM-V: image slices besides the thumbnail",
        metavar="N",
        least=0,
        most=36,
        unbuilt=_VISION,
    )
    image_fetch: bool = _option(False, _CHAT, "fetch http(s) image URLs, not data URLs only", unbuilt=_VISION)


def option_of(setting: "Field[Any]") -> Option:
    """The option behind a field of ServeSettings."""
    option: Option = setting.metadata["option"]
    return option


def flag_of(setting: "Field[Any]") -> str:
    """`--kv-ram-gb` for kv_ram_gb."""
    return "--" + setting.name.replace("_", "-")


def check(settings: ServeSettings, given: Set[str]) -> None:
    """Raise ConfigError for a value out of range or, among the `given` names, for one whose part is not built yet."""
    for setting in fields(settings):
        value, option, flag = getattr(settings, setting.name), option_of(setting), flag_of(setting)
        if option.choices and value is not None and value not in option.choices:
            raise ConfigError(f"{flag} {value} is not one of {', '.join(option.choices)}")
        if isinstance(value, int | float) and not _in_range(value, option):
            raise ConfigError(f"{flag} {value:g} is out of range; it must be {_range(option)}")
        if value in ("", ()):
            raise ConfigError(f"{flag} is empty; give a value or leave it out")
        if setting.name in given and option.unbuilt and value not in option.works_with:
            raise ConfigError(f"{_shown(flag, value)}: {option.unbuilt} is not available in this version yet")
    _check_names(settings)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given_flag, other = ("--tls-cert", "--tls-key") if settings.tls_key is None else ("--tls-key", "--tls-cert")
        raise ConfigError(f"{given_flag} needs {other} as well")


def _check_names(settings: ServeSettings) -> None:
    """What no request could ever meet is a mistake."""
    name = settings.served_model_name
    if name is not None and not name.isprintable():
        raise ConfigError(f"--served-model-name {name!a} has characters that cannot be printed; leave them out")
    for origin in settings.cors_origin or ():
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"--cors-origin {origin!a} is no origin; give scheme://host or scheme://host:port, or *")
    for host in settings.allow_host or ():
        if not _HOST.fullmatch(host):
            raise ConfigError(f"--allow-host {host!a} is no host name; give it without scheme, port and path")


def _in_range(value: float, option: Option) -> bool:
    return (option.least is None or value >= option.least) and (option.most is None or value <= option.most)


def _range(option: Option) -> str:
    return f"{option.least:g} or more" if option.most is None else f"from {option.least:g} to {option.most:,.0f}"


def _shown(flag: str, value: Any) -> str:
    return flag if isinstance(value, bool) else f"{flag} {value}"

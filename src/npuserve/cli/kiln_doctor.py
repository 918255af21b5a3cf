"""kiln-serve doctor: what is there on this board, what is missing, and what to do about it."""

import importlib.util
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from npuserve import __version__
from npuserve.checkpoints.tokenizer_folder import TOKENIZER_FILE
from npuserve.cli.kiln_models import discover
from npuserve.cli.kiln_settings import KilnSettings
from npuserve.drivers.rkllm_layout import find_layout, find_library, read_only_data
from npuserve.errors import NpuserveError
from npuserve.home import expanded
from npuserve.server.listening import listen
from npuserve.vision.packages import PACKAGES

_RKNN_PATHS = ("usr/lib/librknnrt.so", "usr/lib/aarch64-linux-gnu/librknnrt.so", "usr/local/lib/librknnrt.so")
_RKNN_VERSION = re.compile(rb"librknnrt version: (\d+\.\d+\.\d+\S{0,20})")
_NODES = ("dev/rknpu", "dev/dri")
# Weights are mapped as a whole; the context and the runtime need room beside them.
_ROOM = 1.25


class Verdict(StrEnum):
    PASS = "pass"
    NOTE = "note"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; only FAIL makes the exit status 1."""

    verdict: Verdict
    part: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:4}  {self.part}: {self.text}"


def examine(settings: KilnSettings, root: Path = Path("/")) -> Iterator[Finding]:
    """Look at everything that kiln-serve needs; `root` stands for the file system's."""
    yield Finding(Verdict.PASS, "software", f"npuserve {__version__}, Python {platform.python_version()}")
    yield _config(settings)
    language, vision = discover(settings.llm_path, ".rkllm"), discover(settings.vision_path, ".rknn")
    yield from _models(settings, language, vision)
    if language is not None and language.suffix == ".rkllm":
        yield _guarded("librkllmrt", lambda: _rkllm(settings))
        yield _tokenizer(settings, language)
        yield _memory(language, root)
    if vision is not None:
        yield from _vision(settings, vision, root)
    if any(path is not None and path.suffix in (".rkllm", ".rknn") for path in (language, vision)):
        yield _board(root)
        yield from _nodes(root)
    yield _guarded("address", lambda: _address(settings))


def report(settings: KilnSettings, tell: Callable[[str], None] = print) -> int:
    """Tell all findings; the exit status."""
    failed = False
    for finding in examine(settings):
        tell(str(finding))
        failed = failed or finding.verdict is Verdict.FAIL
    return int(failed)


def _guarded(part: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(Verdict.PASS, part, look())
    except NpuserveError as error:
        return Finding(Verdict.FAIL, part, str(error))


def _config(settings: KilnSettings) -> Finding:
    path = settings.config_path
    if path.is_file():
        return Finding(Verdict.PASS, "configuration", str(path))
    return Finding(Verdict.NOTE, "configuration", f"{path} is not there; defaults and options are used")


def _models(settings: KilnSettings, language: Path | None, vision: Path | None) -> Iterator[Finding]:
    for part, asked, found in (
        ("language model", settings.llm_path, language),
        ("vision model", settings.vision_path, vision),
    ):
        if found is None:
            only = language is None and vision is None
            verdict = Verdict.FAIL if only or asked is not None else Verdict.NOTE
            yield Finding(verdict, part, f"{asked or 'none configured'}; none found there or in /opt/models")
        elif not os.access(found, os.R_OK):
            yield Finding(Verdict.FAIL, part, f"{found} cannot be read by this user")
        else:
            instead = f", in place of {asked}" if asked not in (None, found) else ""
            yield Finding(Verdict.PASS, part, f"{found}{instead}{_size(found)}")


def _size(path: Path) -> str:
    return f", {path.stat().st_size / 1e6:,.0f} MB" if path.is_file() else ""


def _rkllm(settings: KilnSettings) -> str:
    library = find_library(settings.library)
    return f"{library}, layout {find_layout(library, settings.runtime)}"


def _tokenizer(settings: KilnSettings, model: Path) -> Finding:
    chosen = expanded(settings.tokenizer) if settings.tokenizer else model.parent
    file = chosen / TOKENIZER_FILE if chosen.is_dir() else chosen
    if file.is_file():
        return Finding(Verdict.PASS, "tokenizer", str(file))
    missing = settings.tokenizer is not None or settings.sampling == "host"
    text = f"no {file}; prompts are made by family, and tokens are counted by the runtime"
    return Finding(Verdict.FAIL if missing else Verdict.NOTE, "tokenizer", text)


def _memory(model: Path, root: Path) -> Finding:
    facts = _read(root / "proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+) kB", facts)
    if found is None:
        return Finding(Verdict.NOTE, "memory", "what is available cannot be told here")
    available, needed = int(found[1]) * 1024, model.stat().st_size * _ROOM
    text = f"{available / 1e6:,.0f} MB available, about {needed / 1e6:,.0f} MB needed"
    if available >= needed:
        return Finding(Verdict.PASS, "memory", text)
    return Finding(Verdict.FAIL, "memory", f"{text}; stop other programs or take a smaller model")


def _vision(settings: KilnSettings, model: Path, root: Path) -> Iterator[Finding]:
    runtime = {"rknnlite": "rknn-toolkit-lite2"} if model.suffix == ".rknn" else {"onnxruntime": "onnxruntime"}
    for module, package in (PACKAGES | runtime).items():
        if importlib.util.find_spec(module) is None:
            yield Finding(Verdict.FAIL, "package", f"{package} is missing; pip install {package}")
    if model.suffix == ".rknn":
        library = next((root / path for path in _RKNN_PATHS if (root / path).is_file()), None)
        if library is None:
            yield Finding(Verdict.FAIL, "librknnrt", f"not found ({', '.join('/' + path for path in _RKNN_PATHS)})")
        else:
            version = _RKNN_VERSION.search(read_only_data(library.read_bytes()))
            told = version[1].decode("ascii", "replace") if version else "of unknown version"
            text = f"{library} {told}; a .rknn must be made by the same toolkit version"
            yield Finding(Verdict.PASS, "librknnrt", text)
    labels = expanded(settings.labels)
    if labels.is_file():
        yield Finding(Verdict.PASS, "labels", str(labels))
    else:
        yield Finding(Verdict.NOTE, "labels", f"{labels} is not there; classes are called by number")


def _board(root: Path) -> Finding:
    compatible = _read(root / "proc/device-tree/compatible").replace("\0", " ").strip()
    chip = re.search(r"rockchip,(rk\w+)(?!.*rockchip,rk)", compatible)
    driver = _read(root / "sys/kernel/debug/rknpu/version").strip() or _read(root / "proc/rknpu/version").strip()
    told = f"; {driver}" if driver else "; the driver's version is told to root only"
    if chip is None:
        return Finding(Verdict.FAIL, "board", "this is no Rockchip board; an .rkllm or .rknn runs on none but its chip")
    return Finding(Verdict.PASS, "board", chip[1] + told)


def _nodes(root: Path) -> Iterator[Finding]:
    nodes = [root / "dev/rknpu"] if (root / "dev/rknpu").exists() else []
    dri = root / "dev/dri"
    nodes += sorted(dri.glob("renderD*")) if dri.is_dir() else []
    if not nodes:
        where = " or ".join("/" + node for node in _NODES)
        yield Finding(Verdict.FAIL, "device node", f"none in {where}; the kernel has no NPU driver")
    for node in nodes:
        if os.access(node, os.R_OK | os.W_OK):
            yield Finding(Verdict.PASS, "device node", str(node))
        else:
            text = f"{node} may not be opened by this user; add it to the group of the node (render or video)"
            yield Finding(Verdict.FAIL, "device node", text)


def _address(settings: KilnSettings) -> str:
    listen(settings.common.host, settings.common.port).close()
    return f"{settings.common.host} port {settings.common.port} is free"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

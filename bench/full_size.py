"""Models of the catalog in their full size, with random weights: image, memory of its build, speed.

    python bench/full_size.py qwen35-4b gemma4           these short names
    python bench/full_size.py --all                      every dense one
    python bench/full_size.py --sizes                    only what they need of card memory, for three formats

For each name a checkpoint with the real model's shapes is written (bfloat16; sizes and names of tensors are those of
transformers, which needs `pip install '.[oracle]'`). Two processes follow: one builds the image as
otpu-serve does with its defaults, the other opens it and decodes. Values are one random block again and again, so
files are quickly written; no format and no kernel cares.

Memory of a build is the most that was resident, and that less the pages of mapped files; serving, the most that was
resident. A build's time is the processor's. Published speeds of the card are shown with the memory rate that they would
need with our image.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from full_size_models import FULL_SIZE_MODELS
from npuserve.checkpoints.catalog import catalog
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.cli.chosen_formats import chosen_formats
from npuserve.core import Row
from npuserve.devices.isa import IsaSettings, cached_image, device_layout, image_path, open_isa_device
from npuserve.errors import ProgramError
from npuserve.models.registry import model_facts
from npuserve.models.weight_formats import with_formats
from npuserve.program.dram import DramLayout
from npuserve.program.fitted_layout import fitted_layout
from npuserve.program.geometry import Geometry
from npuserve.program.tmem import most_rows
from tiny_tokenizer import tiny_tokenizer

CARD = {
    "qwen3": ("int8", 21.6),
    "smollm3": ("mix", 6.23),
    "phi4-mini": ("mix", 5.39),
    "lfm2": ("int8", 59.0),
    "lfm2-2.6b": ("mix", 10.84),
    "qwen35": ("int8", 17.6),
    "qwen35-2b": ("int8", 8.02),
    "qwen35-4b": ("mix", 5.70),
    "gemma4": ("mix", 8.30),
    "gemma4-e4b": ("mix", 3.78),
}
"""Published decode speed of the card: weights, tokens a second of the device."""
COLUMNS = [
    *("model", "weights", "image", "slots", "build", "memory", "without files", "serving"),
    *("MB a token", "tok/s", "best", "card", "its GB/s"),
]
MIB = 1 << 20
SPREAD = 0.02
BLOCK_VALUES = 1 << 22
PROMPT = 16
SAMPLE_S = 0.02
SHARD_VALUES = 2 << 30
SHARD_HEADER_ALIGNMENT = 8
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.role }} {{ message.content }}<|im_end|>{% endfor %}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"short names: {', '.join(FULL_SIZE_MODELS)}")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--sizes", action="store_true", help="only print sizes")
    parser.add_argument("--wformat", default="auto", help="weight format of the layers, as otpu-serve's")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to decode (default 16)")
    parser.add_argument("--folder", type=Path, help="keep checkpoints and images here (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--step", choices=("write", *STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = list(FULL_SIZE_MODELS) if options.all else options.names
    if unknown := [name for name in names if name not in FULL_SIZE_MODELS]:
        parser.error(f"{unknown[0]} is not one of {', '.join(FULL_SIZE_MODELS)}")
    if options.step == "write":
        write_checkpoint(options.folder, FULL_SIZE_MODELS[names[0]])
    elif options.sizes:
        print_sizes(names or list(FULL_SIZE_MODELS))
    elif options.step:
        print(json.dumps(STEPS[options.step](options.folder, names[0], options)))
    else:
        measure(names, options)


def measure(names: list[str], options: argparse.Namespace) -> None:
    figures = {}
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            root = options.folder or Path(temporary)
            folder = root / catalog()[name].directory
            if not (folder / "config.json").exists():
                in_process("write", folder, name, options)
            figures[name] = {
                key: value for step in STEPS for key, value in in_process(step, folder, name, options).items()
            }
        print(row(name, figures[name]), flush=True)
    print(f"\n| {' | '.join(COLUMNS)} |\n|{len(COLUMNS) * ' --- |'}")
    for name in names:
        print(row(name, figures[name]))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


def in_process(step: str, folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures that a process of its own prints last."""
    command = [sys.executable, __file__, name, "--step", step, "--folder", str(folder)]
    command += ["--wformat", options.wformat, "--tokens", str(options.tokens)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout or "{}")
    return figures


def row(name: str, f: dict[str, Any]) -> str:
    weights, speed = CARD[name]
    cells = (
        name,
        f["formats"],
        f"{f['image_mb']:.0f} MB",
        f"{f['slots']} x {f['context']}",
        f"{f['build_cpu_s']:.0f} s",
        f"{f['peak_mb']:.0f} MB",
        f"{f['anonymous_mb']:.0f} MB",
        f"{f['serving_mb'] / 1000:.1f} GB",
        f"{f['mb_a_token']:.0f}",
        f"{f['tokens_per_s']:.1f}",
        f"{f['best_tokens_per_s']:.1f}",
        f"{speed:.1f} ({weights})",
        f"{speed * f['mb_a_token'] / 1000:.1f}",
    )
    return f"| {' | '.join(cells)} |"


# ---- card memory


def print_sizes(names: list[str]) -> None:
    """Weights and one slot of 2,048 tokens; with the catalog's formats also what is served of the defaults."""
    print("| model | int8 | fp4 | as catalogued | a slot | served |\n| --- | --- | --- | --- | --- | --- |")
    for name in names:
        int8, fp4, own = (sized(name, wformat) for wformat in ("int8", "fp4", "auto"))
        assert own is not None, "tests/unit/program/test_fitted_layout.py says that each fits"
        slots = f"{own.num_slots} x {own.geometry.capacity}"
        print(f"| {name} | {mebibytes(int8)} | {mebibytes(fp4)} | {mebibytes(own)}", end="")
        print(f" | {own.slot_stride / MIB:.0f} MiB | {slots} |")


def mebibytes(dram: DramLayout | None) -> str:
    return f"{dram.image_bytes / MIB:.0f} MiB" if dram else "too large"


def sized(name: str, wformat: str) -> DramLayout | None:
    """The layout of the defaults; None where the weights leave no room."""
    facts = with_formats(model_facts(FULL_SIZE_MODELS[name]), chosen_formats(name, wformat, None, {}))
    defaults = IsaSettings()
    geometry = Geometry(facts, min(defaults.context_length, facts.context_length))
    try:
        num_slots = 1 if facts.has_state else defaults.num_slots
        return fitted_layout(geometry, num_slots, most_rows(geometry, defaults.machine))
    except ProgramError:
        return None


# ---- a checkpoint


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    """config.json last, so that a folder that has one is whole."""
    shapes = tensor_shapes(config)
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0).standard_normal(BLOCK_VALUES, np.float32) * np.float32(SPREAD)
    block = (random.view(np.uint32) >> 16).astype(np.uint16)
    shards, end = [dict[str, tuple[int, ...]]()], 0
    for name, shape in shapes.items():
        if end > SHARD_VALUES:
            shards, end = [*shards, {}], 0
        shards[-1][name] = shape
        end += math.prod(shape)
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for file, tensors in zip(files, shards, strict=True):
        write_shard(folder / file, tensors, block)
    weight_map = {name: file for file, tensors in zip(files, shards, strict=True) for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    write_tokenizer(folder, config["vocab_size"])
    (folder / "config.json").write_text(json.dumps(config))


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A small tokenizer with as many more tokens as the model has; its own ids stay what they are."""
    described = json.loads(tiny_tokenizer().to_str())
    known = tiny_tokenizer().get_vocab_size()
    described["model"]["vocab"] |= {f"t{number}": number for number in range(known, vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    settings = {"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of the model that transformers makes of the configuration, without memory for its weights."""
    import torch

    from oracle.transformers_models import CLASSES

    config_class, model_class = CLASSES[config["model_type"]]
    with torch.device("meta"):
        model = model_class(config_class(**config))
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if name != "lm_head.weight"}


def write_shard(path: Path, tensors: dict[str, tuple[int, ...]], block: np.ndarray[Any, np.dtype[np.uint16]]) -> None:
    """Matrices of the random block again and again, vectors of ones; bfloat16."""
    table, end = {}, 0
    for name, shape in tensors.items():
        size = 2 * math.prod(shape)
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % SHARD_HEADER_ALIGNMENT)
    one = np.full(1 << 16, 0x3F80, np.uint16)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for shape in tensors.values():
            values, left = (block if len(shape) > 1 else one), math.prod(shape)
            while left:
                part = values[:left]
                file.write(part.data)
                left -= len(part)


# ---- the measured processes


def build(folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    checkpoint, _, dram = opened(folder, name, options)
    path = image_path(checkpoint, dram.geometry.facts, folder)
    path.unlink(missing_ok=True)
    with PeakAnonymous() as peak:
        started, cpu_started = time.perf_counter(), time.process_time()
        cached_image(path, checkpoint, dram)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        "formats": settings_text(name, options),
        "build_s": seconds,
        "build_cpu_s": cpu_seconds,
        "peak_mb": peak_rss_mb(),
        "anonymous_mb": peak.size_bytes / 1e6,
        "image_mb": dram.image_bytes / 1e6,
        "file_mb": path.stat().st_size / 1e6,
        "slots": dram.num_slots,
        "context": dram.geometry.capacity,
        "mb_a_token": streamed_bytes(dram) / 1e6,
    }


def decode(folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    checkpoint, settings, _ = opened(folder, name, options)
    started = time.perf_counter()
    device = open_isa_device(checkpoint, settings)
    opened_s = time.perf_counter() - started
    device.step([Row(0, position, 100 + position, False) for position in range(PROMPT)])
    token, seconds = 1, []
    for position in range(PROMPT, PROMPT + options.tokens):
        started = time.perf_counter()
        logits = device.step([Row(0, position, token, True)]).logits[0]
        seconds.append(time.perf_counter() - started)
        assert np.isfinite(logits).all()
        token = int(np.argmax(logits))
    return {
        "open_s": opened_s,
        "tokens_per_s": 1 / statistics.median(seconds),
        "best_tokens_per_s": 1 / min(seconds),
        "serving_mb": peak_rss_mb(),
    }


def peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


STEPS = {"build": build, "decode": decode}


def opened(folder: Path, name: str, options: argparse.Namespace) -> tuple[Any, IsaSettings, DramLayout]:
    """With the defaults of otpu-serve."""
    checkpoint = open_checkpoint(folder)
    settings = IsaSettings(formats=chosen_formats(name, options.wformat, None, {}), cache=folder)
    return checkpoint, settings, device_layout(checkpoint, settings)


def settings_text(name: str, options: argparse.Namespace) -> str:
    if options.wformat not in ("auto", "mix"):
        return str(options.wformat)
    return catalog()[name].mix or "int8"


def streamed_bytes(dram: DramLayout) -> int:
    """Codes and scales of every matrix, which a decode step reads once."""
    facts = dram.geometry.facts
    kinds = [dram.kinds[facts.kind_of(layer)].matrices for layer in range(facts.num_layers)]
    matrices = [dram.head, *(matrix for kind in kinds for matrix in kind)]
    return sum(matrix.n * (matrix.row_stride + matrix.scale_stride) for matrix in matrices)


class PeakAnonymous:
    """The most memory not backed by a file that this process had, looked at every 20 ms."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PeakAnonymous":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            lines = Path("/proc/self/status").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
            self.size_bytes = max(self.size_bytes, kib * 1024)


if __name__ == "__main__":
    main()

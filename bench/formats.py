"""What a weight format brings and costs: image, bytes a token, speed in one run; and accuracy on a real model.

    python bench/formats.py                              speed, on random weights in the shape of Qwen3-0.6B
    python bench/formats.py --accuracy                   next tokens of SmolLM2 against transformers in float32
    python bench/formats.py --accuracy --four-bit modelopt --formats auto,int8      the same model as a 4-bit checkpoint

Speed: one device per format is open at a time with the others, and they are measured in turns, a few steps each, so
that a busy machine disturbs all alike; a figure is the median of its steps. The random checkpoint does not fit a
processor's cache, as real ones do not. Accuracy: the same text and measures as bench/accuracy.py. With --four-bit the
layers' matrices are first rounded to NVFP4 or MXFP4 and written as such a checkpoint, which is then the reference, too.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from four_bit_checkpoint import LAYOUTS, is_layer_matrix, kind_of, quantize, raw_tensors, write_raw_checkpoint
from full_size_models import FULL_SIZE_MODELS
from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.core import Row
from npuserve.models.weight_formats import format_plan
from random_checkpoint import write_random_checkpoint
from simulated_device import Simulated, simulate

FORMATS = ("int8", "fp4", "int4", "nvfp4")
CONTEXT = 64
STEPS_IN_TURN = 8
TURNS = 6
PROMPT = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS), help="formats between commas (default all)")
    parser.add_argument("--head", help="format of the head (default as the layers)")
    parser.add_argument("--accuracy", action="store_true", help="measure accuracy, not speed")
    parser.add_argument("--model", default="smollm2", help="with --accuracy: short name or checkpoint")
    parser.add_argument("--tokens", type=int, default=1000, help="with --accuracy: length of the text")
    parser.add_argument("--mix", default="", help="with --accuracy: also int8 with these rules")
    parser.add_argument("--four-bit", choices=LAYOUTS, help="with --accuracy: the checkpoint in this layout")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    figures = accuracy(options) if options.accuracy else speed(options)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


def speed(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_random_checkpoint(path, FULL_SIZE_MODELS["qwen3"])
        devices, figures = {}, {}
        for name in options.formats.split(","):
            started = time.perf_counter()
            plan = format_plan(name, options.head, "")
            devices[name] = simulate(path, formats=plan, image=path / f"{name}.img", capacity=512, num_slots=1)
            built = time.perf_counter() - started
            figures[name] = {"image_mb": devices[name].dram.image_bytes / 1e6, "build_s": built}
            print(f"{name}: image of {figures[name]['image_mb']:.0f} MB in {built:.0f} s", flush=True)
        for what, rows, measured in (("decode", 1, decode), ("prefill", PROMPT, prefill)):
            for name, seconds in in_turns(devices, measured).items():
                figures[name][f"{what}_tokens_per_s"] = rows / statistics.median(seconds)
        for name, simulated in devices.items():
            figures[name]["mb_a_token"] = streamed_bytes(simulated) / 1e6
        report(figures)
        return figures


def in_turns(devices: dict[str, Simulated], measured: Any) -> dict[str, list[float]]:
    """Seconds of each measured step by format."""
    for simulated in devices.values():
        list(measured(simulated))
    seconds: dict[str, list[float]] = {name: [] for name in devices}
    for _ in range(TURNS):
        for name, simulated in devices.items():
            seconds[name].extend(measured(simulated))
    return seconds


def decode(simulated: Simulated) -> Iterator[float]:
    for step in range(STEPS_IN_TURN):
        started = time.perf_counter()
        simulated.device.step([Row(0, CONTEXT + step, 100 + step, True)])
        yield time.perf_counter() - started


def prefill(simulated: Simulated) -> Iterator[float]:
    limit = simulated.device.capabilities.max_rows
    started = time.perf_counter()
    for first in range(0, PROMPT, limit):
        simulated.device.step([Row(0, position, position, False) for position in range(first, first + limit)])
    yield time.perf_counter() - started


def streamed_bytes(simulated: Simulated) -> int:
    """Codes and scales of every matrix, which a decode step reads once."""
    dram = simulated.dram
    facts = dram.geometry.facts
    kinds = [dram.kinds[facts.kind_of(layer)].matrices for layer in range(facts.num_layers)]
    matrices = [dram.head, *(matrix for kind in kinds for matrix in kind)]
    return sum(matrix.n * (matrix.row_stride + matrix.scale_stride) for matrix in matrices)


def report(figures: dict[str, Any]) -> None:
    base = figures.get("int8") or next(iter(figures.values()))
    print(f"{'format':8} {'image MB':>9} {'MB/token':>9} {'decode tok/s':>13} {'of int8':>8} {'prefill tok/s':>14}")
    for name, f in figures.items():
        gain = f["decode_tokens_per_s"] / base["decode_tokens_per_s"]
        print(
            f"{name:8} {f['image_mb']:9.0f} {f['mb_a_token']:9.1f} {f['decode_tokens_per_s']:13.2f} {gain:8.2f}"
            f" {f['prefill_tokens_per_s']:14.1f}"
        )


def accuracy(options: argparse.Namespace) -> dict[str, Any]:
    from oracle.accuracy import agreement, english_tokens, rows_of
    from oracle.transformers_models import load_checkpoint, logits_of

    path = ensure_checkpoint(options.model)
    checkpoint = open_checkpoint(path)
    tokens = english_tokens(checkpoint, options.tokens)
    rounded = tempfile.TemporaryDirectory()
    if options.four_bit:
        path = in_four_bits(checkpoint, Path(rounded.name) / checkpoint.name, options.four_bit)
        checkpoint = open_checkpoint(path)
    reference = rows_of(logits_of(load_checkpoint(checkpoint), tokens))
    plans = {name: format_plan(name, options.head, "") for name in options.formats.split(",")}
    if options.mix:
        plans[options.mix] = format_plan("mix", options.head, options.mix)
    figures: dict[str, Any] = {}
    print(f"{checkpoint.name}, {len(tokens)} tokens; head: {options.head or 'as the layers'}")
    for name, plan in plans.items():
        with tempfile.TemporaryDirectory() as folder:
            image = Path(folder) / "device.img"
            simulated = simulate(path, formats=plan, image=image, capacity=len(tokens), num_slots=1)
            found = agreement(rows_of(simulated.feed(np.asarray(tokens))), reference, tokens)
            simulated.device.close()
        figures[name] = {"mean_kl": found.mean_kl, "top1": found.top1, "perplexity_change": found.perplexity_change}
        change = f"perplexity {found.perplexity_change:+.2%}"
        size = f"{simulated.dram.image_bytes / 1e6:.0f} MB"
        print(f"{name:24} mean KL {found.mean_kl:8.5f}  top-1 {found.top1:6.2%}  {change}  {size}", flush=True)
    rounded.cleanup()
    return figures


def in_four_bits(checkpoint: Checkpoint, folder: Path, layout: str) -> Path:
    """A checkpoint with its layers' matrices rounded."""
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.tensor_names()}
    chosen = {name: quantize(tensors[name], kind_of(layout)) for name in tensors if is_layer_matrix(name)}
    return write_raw_checkpoint(folder, checkpoint.config, raw_tensors(tensors, chosen, layout), layout)


if __name__ == "__main__":
    main()

"""otpu-bench: how fast the device itself is, without a server."""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from npuserve import __version__
from npuserve.cli.chosen_formats import chosen_formats
from npuserve.cli.exit_status import exit_status
from npuserve.config import Option, ServeSettings, option_of
from npuserve.core import Row, SamplingParams
from npuserve.errors import ConfigError, NpuserveError

if TYPE_CHECKING:
    from npuserve.models.weight_formats import FormatPlan

ROW_COUNTS = (1, 2, 4, 8, 16)
TOKEN = 100
MILLI = 1000.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement; times are medians of a step in milliseconds."""

    what: str
    rows: int
    context: int
    tokens_per_s: float
    step_ms: float
    program_ms: float
    device_ms: float
    sampling_ms: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, and JSON with --json; returns the exit status."""
    return exit_status("otpu-bench", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        figures = _measure(options)
    except NpuserveError as error:
        print(f"otpu-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(
            json.dumps(
                {
                    "model": options.model,
                    "wformat": options.wformat,
                    "threads": options.threads,
                    "figures": [asdict(f) for f in figures],
                }
            )
        )
    else:
        _print_table(figures)
    return 0


def option(name: str) -> Option:
    """The server's option of the same name."""
    return next(option_of(setting) for setting in fields(ServeSettings) if setting.name == name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="otpu-bench",
        description="Measure the device alone: prefill and decode speed, and where a step's time goes.",
    )
    parser.add_argument("--version", action="version", version=f"otpu-bench (npuserve) {__version__}")
    parser.add_argument(
        "--model", default="smollm2", help="short name, checkpoint folder or .gguf file (default: %(default)s)"
    )
    parser.add_argument(
        "--wformat", default="auto", choices=option("wformat").choices, help=f"{option('wformat').help} (default: auto)"
    )
    parser.add_argument("--head-format", choices=option("head_format").choices, help=option("head_format").help)
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="simulator threads; 0 is one per core (default: 0)"
    )
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="prompt tokens (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=64, metavar="N", help="decode steps per row count (default: %(default)s)"
    )
    parser.add_argument(
        "--context", type=int, default=64, metavar="N", help="tokens before decoding (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    return parser


def _measure(options: argparse.Namespace) -> list[Figure]:
    if min(options.prompt, options.steps, options.context) < 1 or options.threads < 0:
        raise ConfigError("--prompt, --steps and --context must be at least 1, --threads at least 0")
    if options.threads > (most := option("threads").most or 0):
        raise ConfigError(f"--threads {options.threads} is out of range; it must be {most:g} at most")
    formats = chosen_formats(options.model, options.wformat, options.head_format, os.environ)
    with opened_device(options.model, options.threads, max(ROW_COUNTS), _capacity(options), formats) as device:
        limit = min(device.capabilities.max_rows, device.capabilities.num_slots)
        if (wanted := _capacity(options)) > (most := device.capabilities.context_length):
            raise ConfigError(
                f"--prompt {options.prompt}, or --context {options.context} and --steps {options.steps}, need a context"
                f" of {wanted} tokens; the model's has {most}"
            )
        figures = [prefill(device, options.prompt)]
        for rows in ROW_COUNTS:
            if rows <= limit:
                figures.append(decode(device, rows, options.context, options.steps))
        return figures


def _capacity(options: argparse.Namespace) -> int:
    return int(max(options.prompt, options.context + options.steps + 8))


@contextmanager
def opened_device(
    model: str, num_threads: int, num_slots: int, capacity: int, formats: "FormatPlan | None" = None
) -> Iterator[Any]:
    """The isa device with a model loaded, closed at the end."""
    from npuserve.checkpoints.checkpoint import open_checkpoint
    from npuserve.checkpoints.locate import ensure_checkpoint
    from npuserve.checkpoints.progress import Progress
    from npuserve.devices.isa import IsaSettings, open_isa_device
    from npuserve.models.weight_formats import FormatPlan

    checkpoint = open_checkpoint(ensure_checkpoint(model, progress=Progress()))
    settings = IsaSettings(
        num_slots=num_slots,
        context_length=capacity,
        num_threads=num_threads,
        formats=formats or FormatPlan(),
    )
    device = open_isa_device(checkpoint, settings)
    try:
        yield device
    finally:
        device.close()
        checkpoint.close()


def prefill(device: Any, num_tokens: int) -> Figure:
    """One prompt in steps of the device's most rows, logits of the last row only; the better of two runs."""
    steps = min((_prefill_steps(device, num_tokens) for _ in range(2)), key=lambda steps: sum(s[0] for s in steps))
    total_s = sum(step[0] for step in steps)
    return _figure("prefill", device.capabilities.max_rows, num_tokens, num_tokens / total_s, steps)


def _prefill_steps(device: Any, num_tokens: int) -> list[tuple[float, float, float, float]]:
    chunk, steps = device.capabilities.max_rows, []
    for start in range(0, num_tokens, chunk):
        stop = min(start + chunk, num_tokens)
        rows = [Row(0, position, TOKEN + position % 64, position == num_tokens - 1) for position in range(start, stop)]
        steps.append(_timed(device, rows, sample=stop == num_tokens))
    return steps


def decode(device: Any, num_rows: int, context: int, num_steps: int) -> Figure:
    """`num_rows` sequences together, each with `context` tokens before it; greedy sampling."""
    for slot in range(num_rows):
        _fill(device, slot, context)
    for position in range(context, context + 4):
        _timed(device, [Row(slot, position, TOKEN + slot, True) for slot in range(num_rows)], sample=True)
    start = context + 4
    steps = [
        _timed(device, [Row(slot, position, TOKEN + slot, True) for slot in range(num_rows)], sample=True)
        for position in range(start, start + num_steps)
    ]
    rate = num_rows * num_steps / sum(step[0] for step in steps)
    return _figure("decode", num_rows, context, rate, steps)


def _fill(device: Any, slot: int, num_tokens: int) -> None:
    chunk = device.capabilities.max_rows
    for start in range(0, num_tokens, chunk):
        stop = min(start + chunk, num_tokens)
        device.step([Row(slot, position, TOKEN + position % 64, False) for position in range(start, stop)])


def _timed(device: Any, rows: list[Row], *, sample: bool) -> tuple[float, float, float, float]:
    """Seconds of a step: in all, program, device, sampling."""
    from npuserve.engine.sampler import Sampler

    started = time.perf_counter()
    result = device.step(rows)
    stepped = time.perf_counter()
    if sample:
        for logits in result.logits:
            Sampler(SamplingParams(temperature=0.0), 1).sample(logits, [TOKEN])
    done = time.perf_counter()
    return done - started, result.program_s, result.device_s, done - stepped


def _figure(what: str, rows: int, context: int, rate: float, steps: list[tuple[float, float, float, float]]) -> Figure:
    columns = [statistics.median(column) * MILLI for column in zip(*steps, strict=True)]
    return Figure(what, rows, context, rate, *columns)


def _print_table(figures: list[Figure]) -> None:
    split = "".join(f"{name:>9}" for name in ("all", "program", "device", "sampling"))
    print(f"{'':8} {'rows':>4} {'context':>7} {'tok/s':>8}   ms per step:{split}")
    for f in figures:
        print(
            f"{f.what:8} {f.rows:4} {f.context:7} {f.tokens_per_s:8.1f}   {'':12}{f.step_ms:9.2f}{f.program_ms:9.3f}"
            f"{f.device_ms:9.2f}{f.sampling_ms:9.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())

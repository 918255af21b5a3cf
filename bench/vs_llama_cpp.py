"""SmolLM2 on the native simulator against llama.cpp with Q8_0 weights, interleaved in one run.

    pip install '.[bench]' && python bench/vs_llama_cpp.py --out result.json

Both use the same number of threads. llama.cpp gets a Q8_0 file quantized from the same checkpoint (8.5 bits a
weight; ours has 8.25 and some padding). Each round measures both, one after the other, and the medians of the
rounds' ratios count: machines drift, ratios taken side by side do not.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.cli.otpu_bench import decode, opened_device, prefill

CONTEXT = 64
DECODE_ROWS = (1, 8, 16)


def quantize_q8_0(source: Path, target: Path) -> None:
    """llama.cpp's own quantizer; its source file holds Q4_1, so requantizing has to be allowed."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    parameters.allow_requantize = True
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if status != 0:
        sys.exit(f"llama.cpp could not quantize {source}")


class LlamaCpp:
    """The low-level batch interface, so that nothing but the model is measured."""

    def __init__(self, path: Path, num_threads: int, num_sequences: int, context: int) -> None:
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = context * num_sequences
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_seq_max = num_sequences
        parameters.n_threads = parameters.n_threads_batch = num_threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)

    def run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """One batch of (sequence, position, token, wants logits)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for index, (sequence, position, token, wants) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = wants
        if self.api.llama_decode(self.context, batch) != 0:
            sys.exit("llama.cpp could not decode a batch")
        self.api.llama_synchronize(self.context)

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def prefill(self, num_tokens: int) -> float:
        """Tokens a second for one prompt in one batch of 512, the better of two runs."""
        best = 0.0
        for _ in range(2):
            self.clear()
            started = time.perf_counter()
            self.run([(0, p, 100 + p % 64, p == num_tokens - 1) for p in range(num_tokens)])
            best = max(best, num_tokens / (time.perf_counter() - started))
        return best

    def decode(self, num_rows: int, context: int, num_steps: int) -> float:
        """Tokens a second of `num_rows` sequences together."""
        self.clear()
        for sequence in range(num_rows):
            self.run([(sequence, p, 100 + p % 64, False) for p in range(context)])
        for position in range(context, context + 4):
            self.run([(sequence, position, 100 + sequence, True) for sequence in range(num_rows)])
        started = time.perf_counter()
        for position in range(context + 4, context + 4 + num_steps):
            self.run([(sequence, position, 100 + sequence, True) for sequence in range(num_rows)])
        return num_rows * num_steps / (time.perf_counter() - started)


def silence() -> Any:
    """Turn llama.cpp's log off; what is returned must outlive every call to it."""
    import llama_cpp

    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, None)
    return callback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48, help="decode steps per round")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    quiet = silence()
    checkpoint = ensure_checkpoint("smollm2")
    source = checkpoint if checkpoint.is_file() else next(checkpoint.glob("*.gguf"))
    capacity = max(options.prompt, CONTEXT + options.steps + 8)
    with tempfile.TemporaryDirectory() as folder:
        peer_file = Path(folder) / "q8_0.gguf"
        quantize_q8_0(source, peer_file)
        peer = LlamaCpp(peer_file, options.threads, max(DECODE_ROWS), capacity)
        with opened_device("smollm2", options.threads, max(DECODE_ROWS), capacity) as device:
            figures = _rounds(peer, device, options)
    del quiet
    _print(figures)
    if options.out:
        options.out.write_text(json.dumps({"threads": options.threads, "figures": figures}, indent=1))


def _rounds(peer: LlamaCpp, device: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    contests: list[tuple[str, Callable[[], float], Callable[[], float]]] = [
        (
            f"decode, {rows} row{'s' * (rows > 1)}",
            lambda rows=rows: float(decode(device, rows, CONTEXT, options.steps).tokens_per_s),  # type: ignore[misc]
            lambda rows=rows: peer.decode(rows, CONTEXT, options.steps),  # type: ignore[misc]
        )
        for rows in DECODE_ROWS
    ]
    contests.append(
        (
            f"prefill, {options.prompt} tokens",
            lambda: float(prefill(device, options.prompt).tokens_per_s),
            lambda: peer.prefill(options.prompt),
        )
    )
    ours: dict[str, list[float]] = {name: [] for name, _, _ in contests}
    theirs: dict[str, list[float]] = {name: [] for name, _, _ in contests}
    for number in range(options.rounds + 1):
        for name, run_ours, run_theirs in contests:
            pair = run_ours(), run_theirs()
            if number:  # the first round warms up
                ours[name].append(pair[0])
                theirs[name].append(pair[1])
    return [
        {
            "what": name,
            "npuserve": statistics.median(ours[name]),
            "llama_cpp": statistics.median(theirs[name]),
            "ratio": statistics.median(a / b for a, b in zip(ours[name], theirs[name], strict=True)),
            "ratios": [round(a / b, 3) for a, b in zip(ours[name], theirs[name], strict=True)],
        }
        for name in ours
    ]


def _print(figures: list[dict[str, Any]]) -> None:
    print(f"{'tok/s, median of rounds':24} {'npuserve':>9} {'llama.cpp':>9} {'ratio':>6}   ratios of the rounds")
    for figure in figures:
        print(
            f"{figure['what']:24} {figure['npuserve']:9.1f} {figure['llama_cpp']:9.1f} {figure['ratio']:6.2f}"
            f"   {figure['ratios']}"
        )


if __name__ == "__main__":
    main()

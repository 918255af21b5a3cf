"""What int8 costs: the device's next tokens against float32 ones of the same weights, and where the cost arises.

    pip install '.[oracle]' && python bench/accuracy.py --tokens 2000 --out result.json

Three runs over one text (the prose of the Python language reference): the simulated device; transformers in float32
on the checkpoint's dequantized weights; the float64 emulation of tests/oracle, which rounds where the device does.
The emulation with noise of 1e-7 on its embeddings says how near to each other two computations with the same
rounding can be. --layers compares layer by layer instead, each from the device's own hidden state, which is exact but
for the codes that fp32 tips over. With --places the emulation is run once more for each place, without rounding
there, on windows of 256 tokens against itself without any rounding.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.models.registry import model_facts
from oracle.accuracy import Agreement, LogitsOf, Tokens, agreement, english_tokens, rows_of
from oracle.emulation import Emulation, Rounding
from oracle.layer_run import LayerRun
from oracle.teacher_forcing import teacher_forced
from simulated_device import Simulated, simulate

WINDOW = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="short name or checkpoint (default smollm2)")
    parser.add_argument("--tokens", type=int, default=2000, help="length of the text (default 2000)")
    parser.add_argument("--emulate", action="store_true", help="also the emulation, with and without noise (minutes)")
    parser.add_argument("--layers", action="store_true", help="also each layer against the emulation (a minute or two)")
    parser.add_argument("--places", action="store_true", help="also each rounding place alone (many minutes)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    path = ensure_checkpoint(arguments.model)
    checkpoint = open_checkpoint(path)
    tokens = english_tokens(checkpoint, arguments.tokens)
    results: dict[str, Any] = {"model": checkpoint.name, "tokens": len(tokens)}
    print(f"{checkpoint.name}, {len(tokens)} tokens of English")
    print(f"{'candidate against reference':48} {'mean KL':>8} {'worst':>6} {'top-1':>6} {'perplexity':>18}")
    with tempfile.TemporaryDirectory() as folder:
        simulated = simulate(path, capacity=len(tokens), num_slots=1, image=Path(folder) / "device.img")
        for name, found in comparisons(simulated, tokens, emulate=arguments.emulate):
            report(results, name, found)
        if arguments.layers:
            results["layers"] = layers(simulated, tokens)
    if arguments.places:
        for name, found in places(checkpoint, tokens):
            report(results, name, found)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


def report(results: dict[str, Any], name: str, found: Agreement) -> None:
    results[name] = asdict(found) | {"perplexity_change": found.perplexity_change}
    change = f"{found.perplexity:.3f} ({found.perplexity_change:+.2%})"
    print(f"{name:48} {found.mean_kl:8.5f} {found.worst_kl:6.3f} {found.top1:6.2%} {change:>18}", flush=True)


def comparisons(simulated: Simulated, tokens: Tokens, *, emulate: bool) -> Iterator[tuple[str, Agreement]]:
    from oracle.transformers_models import load_checkpoint, logits_of

    checkpoint, device = simulated.checkpoint, rows_of(simulated.feed(tokens))
    reference = rows_of(logits_of(load_checkpoint(checkpoint), tokens))
    yield "device against transformers, float32", agreement(device, reference, tokens)
    if not emulate:
        return
    emulation = Emulation(checkpoint, simulated.facts)
    emulated = emulated_logits(emulation, tokens)
    yield "emulation against transformers, float32", agreement(emulated, reference, tokens)
    yield "device against emulation", agreement(device, emulated, tokens)
    emulation.noise = 1e-7
    yield (
        "emulation with noise of 1e-7 against emulation",
        agreement(emulated_logits(emulation, tokens), emulated, tokens),
    )


def emulated_logits(emulation: Emulation, tokens: Tokens) -> LogitsOf:
    """The head is run when rows are asked for."""
    hidden = emulation.hidden(tokens)
    return lambda start, stop: emulation.head(hidden[start:stop])


def layers(simulated: Simulated, tokens: Tokens) -> dict[str, Any]:
    found = teacher_forced(LayerRun(simulated), Emulation(simulated.checkpoint, simulated.facts), tokens)
    print(f"{'layer, from the hidden state of the device':48} {'median':>8} {'largest':>8} {'tipped':>7}")
    for index, layer in enumerate(found.layers):
        print(f"{index:48} {layer.median:8.1e} {layer.largest:8.1e} {layer.tipped:7.2%}")
    print(f"last layer and head: likeliest tokens agree in {found.top1:.2%}, logits to {found.largest_logit_error:.1e}")
    return {
        "errors": [asdict(layer) for layer in found.layers],
        "top1": found.top1,
        "largest_logit_error": found.largest_logit_error,
    }


def places(checkpoint: Checkpoint, tokens: Tokens) -> Iterator[tuple[str, Agreement]]:
    facts = model_facts(checkpoint.config)
    windows = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)

    def logits(rounding: Rounding) -> LogitsOf:
        emulation = Emulation(checkpoint, facts, rounding)
        hidden = np.concatenate([emulation.hidden(window) for window in windows])
        return lambda start, stop: emulation.head(hidden[start:stop])

    exact, text = logits(Rounding.none()), windows.reshape(-1)
    yield "emulation against itself without rounding", agreement(logits(Rounding()), exact, text)
    for place in Rounding.places():
        yield f"  without rounding of {place}", agreement(logits(Rounding().without(place)), exact, text)


if __name__ == "__main__":
    main()

"""Speed of the native simulator's instructions: MM, VOP and small ones, as a table and as JSON.

    python bench/sim_kernels.py [--threads N] [--kernels NAME] [--json FILE]

MM streams the weights of SmolLM2-135M, one set of 30 layers (113 MB packed), so nothing but activations stays in
the caches from layer to layer. Each figure is the best of several runs: the machine is shared.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npuserve.isa.fields import Address, Value
from npuserve.isa.machine import WIDE
from npuserve.isa.spec import BMode, VectorFunction, encode
from npuserve.sim.native import NativeMachine

NUM_LAYERS = 30
DEPTH = WIDE.depth
# (output rows, blocks) of a layer's matrices: q/k/v, attention output, gate and up, down.
LAYER = ((960, 5), (576, 5), (3072, 5), (576, 12))
HIDDEN = 576
Instruction = list[int]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured line."""

    name: str
    value: float
    unit: str


def timed(machine: NativeMachine, program: Sequence[Instruction], repeats: int = 7) -> float:
    """Seconds of the fastest of several runs, after two that let the machine pack its weights."""
    machine.load(np.array([*program, encode("HALT")], np.uint32))
    machine.run()
    machine.run()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        machine.run()
        best = min(best, time.perf_counter() - start)
    return best


def layer_bytes() -> int:
    return sum(n * kb * DEPTH + n * kb * 4 for n, kb in LAYER)


def fill_weights(machine: NativeMachine) -> None:
    """Random weights of all layers from address 0, each matrix followed by its scales; padding columns are zero."""
    rng = np.random.default_rng(1)
    address = 0
    for _ in range(NUM_LAYERS):
        for n, kb in LAYER:
            weights = rng.integers(-127, 128, (n, kb * DEPTH), np.int8)
            if kb == 5:
                weights[:, HIDDEN:] = 0
            machine.write_dram(address, weights.view(np.uint8).reshape(-1))
            address += weights.size
            scales = rng.uniform(1e-3, 2e-3, n * kb).astype(np.float32)
            machine.write_dram(address, scales.view(np.uint8))
            address += scales.nbytes
    activations = rng.standard_normal(1 << 18).astype(np.float32)
    machine.write_tmem(0, activations.view(np.uint32))
    machine.load(np.array([encode("QACT", src=0, rows=64, kb=12, srs=2048), encode("HALT")], np.uint32))
    machine.run()


def layers(rows: int) -> list[Instruction]:
    """A hardware loop over the layers."""
    body, offset = [], 0
    for n, kb in LAYER:
        scales = offset + n * kb * DEPTH
        operands: dict[str, Value] = {"sa": Address(1, offset), "ssa": Address(1, scales), "out": 1 << 19}
        body.append(encode("MM", **operands, n=n, kb=kb, m=rows, rs=kb * DEPTH, srs=kb * 4, ors=n))
        offset = scales + n * kb * 4
    body.append(encode("ADDI", rd=1, ra=1, value=layer_bytes()))
    return [encode("LI", rd=1, value=0), encode("LOOP", body=len(body), count=NUM_LAYERS), *body]


def mm_figures(machine: NativeMachine) -> list[Figure]:
    fill_weights(machine)
    figures = []
    multiply_adds = NUM_LAYERS * sum(n * (HIDDEN if kb == 5 else kb * DEPTH) for n, kb in LAYER)
    for rows in (1, 2, 4, 8, 16, 32, 64):
        seconds = timed(machine, layers(rows))
        figures.append(Figure(f"MM, {rows} rows", multiply_adds * rows / seconds / 1e9, "GMAC/s"))
        if rows == 1:
            figures.append(Figure("MM, 1 row, DRAM bytes", NUM_LAYERS * layer_bytes() / seconds / 1e9, "GB/s"))
    return figures


def vop(function: VectorFunction, rows: int, cols: int, **operands: Value) -> Instruction:
    places: dict[str, Value] = {"dst": 1 << 19, "a": 0, "b": 1 << 18, "drs": cols, "ars": cols, "brs": cols}
    return encode("VOP", **places | operands, func=function, rows=rows, cols=cols)


def vop_figures(machine: NativeMachine) -> list[Figure]:
    figures = []
    for function in VectorFunction:
        if function is VectorFunction.OUTER:
            continue
        for rows, cols, count in ((64, 1536, 20), (9, 256, 200)):
            program = [encode("LOOP", body=1, count=count), vop(function, rows, cols)]
            seconds = timed(machine, program)
            rate = rows * cols * count / seconds / 1e9
            figures.append(Figure(f"VOP {function.name}, {rows} x {cols}", rate, "Gelement/s"))
    return figures


def small_figures(machine: NativeMachine) -> list[Figure]:
    """Nanoseconds of an instruction as a decode step has them by the thousand."""
    instructions = {
        "NOP": encode("NOP"),
        "ADDI": encode("ADDI", rd=2, ra=2, value=1),
        "LD, 576 words": encode("LD", src=0, dst=0, count=576),
        "VOP MUL, 1 x 32": vop(VectorFunction.MUL, 1, 32),
        "VOP ADD, 9 x 32, strided": vop(VectorFunction.ADD, 9, 32, dst=32, a=0, b=64, drs=128, ars=128, brs=128),
        "VOP MUL, 1 x 576": vop(VectorFunction.MUL, 1, 576),
        "VOP RSSQ, 1 x 576": vop(VectorFunction.RSSQ, 1, 576),
        "VOP RSQRT, 1 x 1": vop(VectorFunction.RSQRT, 1, 1, bmode=int(BMode.IMMEDIATE)),
        "VOP EXP2, 1 x 1536": vop(VectorFunction.EXP2, 1, 1536),
        "QACT, 1 x 5 blocks": encode("QACT", src=0, rows=1, kb=5, cscale=4096, rscale=8192, use_cscale=1, use_rscale=1),
        "QACT, 1 x 12 blocks": encode("QACT", src=0, rows=1, kb=12),
        "QST, 1 x 1 block": encode("QST", src=0, dst=0xF000000, sdst=0xF100000, rows=1, kb=1, es=1),
        "QST, column of 64": encode(
            "QST", src=0, dst=0xF000000, sdst=0xF200000, rows=1, kb=1, es=2048, row_scale=1, half=1
        ),
        "MM, 3 rows, 256 x 1 block": encode("MM", sa=0, out=1 << 19, n=256, kb=1, m=3, rs=128, ors=256, unit=1),
        "MM, 3 rows, 64 x 2 blocks": encode("MM", sa=0, out=1 << 19, n=64, kb=2, m=3, rs=2048, ors=64, unit=1),
    }
    figures = []
    for name, instruction in instructions.items():
        count = 10_000
        seconds = timed(machine, [encode("LOOP", body=1, count=count), instruction], repeats=3)
        figures.append(Figure(name, seconds / count * 1e9, "ns"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--kernels", help="kernel set; default the best")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    machine = NativeMachine(WIDE, 1 << 28, threads=arguments.threads, kernels=arguments.kernels)
    figures = [*mm_figures(machine), *vop_figures(machine), *small_figures(machine)]
    print(f"kernels {machine.kernels}, {machine.num_threads} threads")
    for figure in figures:
        print(f"{figure.name:<34}{figure.value:10.2f} {figure.unit}")
    if arguments.json:
        record = {"kernels": machine.kernels, "threads": machine.num_threads}
        record["figures"] = [{"name": f.name, "value": round(f.value, 3), "unit": f.unit} for f in figures]
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

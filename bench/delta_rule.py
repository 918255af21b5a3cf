"""What DSTEP brings: a random model in the shape of Qwen3.5-0.8B on machines with and without it, in one run.

    python bench/delta_rule.py                           speed, and what instructions a step's time goes to
    python bench/delta_rule.py --formats fp4             4-bit weights under an int8 head

Both devices are open at a time and measured in turns, so that a busy machine disturbs both alike; a figure is the
median of its steps. The results of both are the same to the bit.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from full_size_models import FULL_SIZE_MODELS
from npuserve.core import Row
from npuserve.isa.machine import WIDE
from npuserve.models.weight_formats import format_plan
from npuserve.sim.native import NativeLink
from random_checkpoint import write_random_checkpoint
from simulated_device import Simulated, simulate

MACHINES = {"without": replace(WIDE, dstep=False), "with DSTEP": WIDE}
PROMPT_ROWS = 32
TURNS = 10
STEPS_IN_TURN = {1: 6, PROMPT_ROWS: 2}
PROFILED_STEPS = 8
CONTEXT = 2048


class Conversation:
    """One device, whose state goes on from step to step."""

    def __init__(self, simulated: Simulated) -> None:
        self.simulated = simulated
        self._position = 0

    def step(self, rows: int) -> float:
        """Seconds of a step; only decode wants logits."""
        first = self._position
        step = [Row(0, first + index, index, rows == 1) for index in range(rows)]
        started = time.perf_counter()
        self.simulated.device.step(step)
        self._position += rows
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="int8", help="format of the layers' weights (default int8)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_checkpoint(Path(folder), FULL_SIZE_MODELS["qwen35"])
        plan = format_plan(options.formats, "int8", "")
        conversations = {
            name: Conversation(
                simulate(path, machine=machine, capacity=CONTEXT, num_slots=1, max_rows=PROMPT_ROWS, formats=plan)
            )
            for name, machine in MACHINES.items()
        }
        for rows in STEPS_IN_TURN:
            report(rows, in_turns(conversations, rows))
        for name, conversation in conversations.items():
            for rows in STEPS_IN_TURN:
                print(f"{name}, {rows} rows: {profile(conversation, rows)}")


def in_turns(conversations: dict[str, Conversation], rows: int) -> dict[str, list[float]]:
    """Seconds of each measured step by machine."""
    seconds: dict[str, list[float]] = {name: [] for name in conversations}
    for turn in range(TURNS + 1):
        for name, conversation in conversations.items():
            conversation.step(rows)
            measured = [conversation.step(rows) for _ in range(STEPS_IN_TURN[rows])]
            seconds[name] += measured if turn else []
    return seconds


def report(rows: int, seconds: dict[str, list[float]]) -> None:
    base = statistics.median(seconds["without"])
    for name, measured in seconds.items():
        median = statistics.median(measured)
        print(
            f"{rows:3} rows, {name:10}: {1e3 * median:7.2f} ms a step, {rows / median:7.1f} tok/s,"
            f" {base / median:.2f} of without",
            flush=True,
        )


def profile(conversation: Conversation, rows: int) -> str:
    """Milliseconds of a step by instruction."""
    link = conversation.simulated.link
    assert isinstance(link, NativeLink)
    link.machine.set_profiling(True)
    for _ in range(PROFILED_STEPS):
        conversation.step(rows)
    lines = link.machine.profile()
    link.machine.set_profiling(False)
    return ", ".join(f"{line.name} {1e3 * line.seconds / PROFILED_STEPS:.2f}" for line in lines[:8])


if __name__ == "__main__":
    main()

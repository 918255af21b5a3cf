"""Time to the first token of a long prompt: cold, from its warm slot, from RAM, from disk after a restart.

    python bench/prefix_cache.py --model smollm2 --prompt 1900

Engine level, without HTTP. From RAM means that another conversation has taken the only slot meanwhile; from disk that
device and store have been opened anew and the files dropped from the system's page cache. Between restart and
measurement one short request runs, as the first one after a start packs the weights.
"""

import argparse
import json
import os
import queue
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.checkpoints.progress import Progress
from npuserve.core import CacheSource, Event, Request, SamplingParams
from npuserve.devices.base import Device
from npuserve.devices.isa import IsaSettings, open_isa_device
from npuserve.engine.engine import Engine
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore, open_context_store
from npuserve.program.image import image_key

REPLY_TOKENS = 64
OTHER_TOKENS = 300
MILLI = 1000.0


class Bench:
    """One engine over one store; the device outlives it."""

    def __init__(self, device: Device, model: str, folder: Path) -> None:
        can = device.capabilities
        settings = KvSettings(disk_bytes=8 << 30, folder=folder)
        store = open_context_store(settings, model, can.page_format, can.page_bytes)
        assert store is not None, "the device has no pages"
        self.store: ContextStore = store
        self._events: queue.SimpleQueue[tuple[float, Event]] = queue.SimpleQueue()
        self.engine = Engine(device, EngineSettings(), self._deliver, store=store)
        self.engine.start()
        self._num_requests = 0

    def first_token(self, prompt: tuple[int, ...], num_tokens: int = REPLY_TOKENS) -> tuple[float, Event]:
        """Seconds to the first token, and the event that brought it; the reply is waited for."""
        self._num_requests += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        started_s = time.monotonic()
        self.engine.submit(Request(f"r{self._num_requests}", prompt, sampling, started_s))
        first_s, first = self._events.get()
        event = first
        while event.finish is None:
            _, event = self._events.get()
        return first_s - started_s, first

    def close(self) -> None:
        """Stop, with all that can be saved on disk."""
        self.engine.stop()
        assert self.store.drain(60.0), "the disk does not keep up"
        self.store.close()

    def _deliver(self, events: list[Event]) -> None:
        now_s = time.monotonic()
        for event in events:
            self._events.put((now_s, event))


def measure(checkpoint: Checkpoint, num_threads: int, num_tokens: int, folder: Path) -> dict[str, float]:
    """Milliseconds of one round with a prompt that nobody has sent before."""
    chance = random.Random()
    prompt, other = (tuple(chance.choices(range(1000, 40000), k=count)) for count in (num_tokens, OTHER_TOKENS))
    times = {}
    with opened(checkpoint, num_threads, folder) as bench:
        cold_s, event = bench.first_token(prompt)
        assert event.cache_source is None
        times["cold"] = cold_s * MILLI
        times["slot"] = timed(bench, prompt, CacheSource.SLOT)
        bench.first_token(other)
        times["ram"] = timed(bench, prompt, CacheSource.RAM)
    drop_page_cache(folder)
    with opened(checkpoint, num_threads, folder) as bench:
        times["disk"] = timed(bench, prompt, CacheSource.DISK)
    return times


@contextmanager
def opened(checkpoint: Checkpoint, num_threads: int, folder: Path) -> Iterator[Bench]:
    """A device and an engine that have served one short request."""
    device = open_isa_device(checkpoint, IsaSettings(num_slots=1, num_threads=num_threads))
    bench = Bench(device, image_key(checkpoint), folder)
    bench.first_token((1, 2, 3))
    try:
        yield bench
    finally:
        bench.close()
        device.close()


def timed(bench: Bench, prompt: tuple[int, ...], source: CacheSource) -> float:
    seconds, event = bench.first_token(prompt)
    assert event.cache_source is source, f"served from {event.cache_source}, not {source}"
    return seconds * MILLI


def drop_page_cache(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2", help="short name, checkpoint folder or .gguf file (%(default)s)")
    parser.add_argument("--prompt", type=int, default=1900, metavar="N", help="prompt tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, of which medians (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="simulator threads; 0 means all cores")
    parser.add_argument("--folder", type=Path, help="where the disk tier is made (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    checkpoint = open_checkpoint(ensure_checkpoint(options.model, progress=Progress()))
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in range(options.rounds):
            rounds.append(measure(checkpoint, options.threads, options.prompt, Path(folder) / str(number)))
    medians = {name: statistics.median(times[name] for times in rounds) for name in rounds[0]}
    if options.json:
        print(json.dumps({"model": options.model, "prompt": options.prompt, "ms": medians, "rounds": rounds}))
        return
    for name, milliseconds in medians.items():
        print(f"{name:5} {milliseconds:9.1f} ms {100 * milliseconds / medians['cold']:7.2f} % of cold")


if __name__ == "__main__":
    main()

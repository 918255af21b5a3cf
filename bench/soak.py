"""Many clients for a long time at engine level: nobody errs, nothing leaks.

    python bench/soak.py --minutes 30 --model smollm2      # or --model null: no weights, far more requests

Clients hold conversations of mixed lengths over a store with little room, so that contexts move all the time; some
leave in the middle, now and then all requests are aborted or the store is flushed. At the end the books must add up,
and memory and descriptors must be where they were after the first tenth of the time.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npuserve.core import Event, FinishReason, Request, SamplingParams
from npuserve.devices.base import Device
from npuserve.engine.engine import Engine
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore, open_context_store

_END_WAIT_S = 120.0


class Clients:
    """Conversations against one engine; `outcomes` counts how requests ended."""

    def __init__(self, vocab_size: int, context_length: int, seed: int) -> None:
        self._vocab_size, self._context_length, self._seed = vocab_size, context_length, seed
        self._arrived = threading.Condition()
        self._open: dict[str, Event | None] = {}
        self._num_tokens: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.is_over = False

    def deliver(self, events: list[Event]) -> None:
        """The engine's receiver."""
        with self._arrived:
            for event in events:
                self._num_tokens[event.request_id] += len(event.token_ids)
                if event.finish is not None:
                    self._open[event.request_id] = event
            self._arrived.notify_all()

    def run(self, engine: Engine, client: int) -> None:
        """One client's conversations until it is told to stop."""
        chance = random.Random(self._seed * 1000 + client)
        shared = random.Random(self._seed).choices(range(self._vocab_size), k=self._context_length // 8)
        number = 0
        while not self.is_over:
            prompt = [*shared, *self._tokens(chance, chance.randrange(1, self._context_length // 4))]
            for _ in range(chance.randrange(1, 5)):
                number += 1
                if len(prompt) >= self._context_length or self.is_over:
                    break
                self._ask(engine, chance, f"c{client}-{number}", prompt)
                prompt = [*prompt, *self._tokens(chance, chance.randrange(1, 120))]

    def _tokens(self, chance: random.Random, count: int) -> list[int]:
        return chance.choices(range(self._vocab_size), k=count)

    def _ask(self, engine: Engine, chance: random.Random, name: str, prompt: list[int]) -> None:
        sampling = SamplingParams(temperature=chance.choice([0.0, 1.0]), max_tokens=chance.randrange(1, 100))
        leaves_after = chance.choice([None, None, None, None, 0, 1, 10])
        deadline_s = time.monotonic() + chance.uniform(0.01, 5.0) if chance.random() < 0.05 else None
        salt = chance.choice(["", "", "", "other"])
        self._open[name] = None
        engine.submit(Request(name, tuple(prompt), sampling, time.monotonic(), salt, deadline_s))
        with self._arrived:
            if leaves_after is not None:
                self._arrived.wait_for(lambda: self._open[name] or self._num_tokens[name] >= leaves_after, _END_WAIT_S)
                engine.cancel(name)
            is_done = self._arrived.wait_for(lambda: self._open[name] is not None, _END_WAIT_S)
            final = self._open.pop(name)
            self._num_tokens.pop(name, None)
            if final is None:
                self.errors.append(f"{name} did not end" if not is_done else f"{name} is lost")
                return
            self.outcomes[str(final.finish)] += 1
            if final.finish is FinishReason.FAILED:
                self.errors.append(f"{name}: {final.error}")


@contextmanager
def opened_device(model: str) -> Iterator[tuple[Device, str]]:
    """A device and what names its model."""
    if model == "null":
        from npuserve.devices.null import NullDevice

        yield NullDevice(vocab_size=1000, context_length=1024), "null"
        return
    from npuserve.checkpoints.checkpoint import open_checkpoint
    from npuserve.checkpoints.locate import ensure_checkpoint
    from npuserve.checkpoints.progress import Progress
    from npuserve.devices.isa import IsaSettings, open_isa_device
    from npuserve.program.image import image_key

    checkpoint = open_checkpoint(ensure_checkpoint(model, progress=Progress()))
    device = open_isa_device(checkpoint, IsaSettings())
    yield device, image_key(checkpoint)
    device.close()


def usage() -> dict[str, int]:
    """Memory and descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def soak(device: Device, store: ContextStore, num_clients: int, duration_s: float, seed: int) -> dict[str, Any]:
    """Run it; the report."""
    can = device.capabilities
    clients = Clients(can.vocab_size, can.context_length, seed)
    engine = Engine(device, EngineSettings(), clients.deliver, store=store)
    engine.start()
    threads = [threading.Thread(target=clients.run, args=(engine, number)) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    samples = watch(engine, clients, duration_s, random.Random(seed))
    clients.is_over = True
    for thread in threads:
        thread.join()
    stats = engine.stats()
    if stats.num_running or stats.num_queued or stats.slots:
        clients.errors.append(f"{stats.num_running} running and {stats.num_queued} queued requests are left")
    engine.stop()
    store.drain(60.0)
    store.check()
    return {
        "seconds": duration_s,
        "outcomes": dict(clients.outcomes),
        "errors": clients.errors[:20],
        "num_errors": len(clients.errors),
        "usage": samples,
        "stats": asdict(stats) | {"slots": len(stats.slots), "warm_slots": len(stats.warm_slots)},
    }


def watch(engine: Engine, clients: Clients, duration_s: float, chance: random.Random) -> list[dict[str, int]]:
    """Disturb the engine until the time is over; usage at each tenth of it."""
    started_s, samples = time.monotonic(), [usage()]
    while (passed_s := time.monotonic() - started_s) < duration_s and not clients.errors:
        time.sleep(min(1.0, duration_s / 50))
        if chance.random() < 0.02:
            engine.cancel_all()
        if chance.random() < 0.05:
            engine.forget_contexts()
        if passed_s >= len(samples) * duration_s / 10:
            samples.append(usage())
    return [*samples, usage()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="null", help="null, or as for otpu-serve (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="N", help="how long (%(default)s)")
    parser.add_argument("--clients", type=int, default=16, metavar="N", help="clients at once (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (%(default)s)")
    options = parser.parse_args()
    with opened_device(options.model) as (device, model), tempfile.TemporaryDirectory() as folder:
        page_bytes = device.capabilities.page_bytes
        settings = KvSettings(100 * page_bytes, 500 * page_bytes, Path(folder) / "kv")
        store = open_context_store(settings, model, device.capabilities.page_format, page_bytes)
        assert store is not None, "the device has no pages"
        report = soak(device, store, options.clients, options.minutes * 60, options.seed)
        store.close()
    print(json.dumps(report, indent=1))
    early, late = report["usage"][1], report["usage"][-1]
    grown = (
        late["rss_mb"] > 1.1 * early["rss_mb"] + 50 or late["descriptors"] > early["descriptors"] + 2
    )  # a page may be open
    return 1 if report["num_errors"] or grown else 0


if __name__ == "__main__":
    sys.exit(main())

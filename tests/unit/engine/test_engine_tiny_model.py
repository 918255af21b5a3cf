"""Real keys and values: a model on the simulated card says the same with and without a context store."""

import random
from pathlib import Path

import pytest

from engine_runs import Replies, greedy, running, store_for
from npuserve.core import CacheSource
from npuserve.engine.contexts import StoredContexts
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore
from npuserve.sim.native import available
from simulated_device import simulate
from tiny_checkpoint import tiny_config, write_checkpoint

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

NUM_CLIENTS, NUM_TURNS = 8, 3


def conversation(checkpoint: Path, store: ContextStore | None, replies: Replies, prefix: str) -> list[list[int]]:
    """Replies of clients whose prompts overlap, turn by turn."""
    device = simulate(checkpoint, capacity=512, num_slots=3).device
    chance = random.Random(1)
    system = chance.choices(range(300), k=90)
    prompts = [[*system, *chance.choices(range(300), k=20 + 40 * (client % 2))] for client in range(NUM_CLIENTS)]
    said = []
    with running(device, replies, EngineSettings(num_slots=3, chunk_size=40), store) as engine:
        for turn in range(NUM_TURNS):
            for client in range(NUM_CLIENTS):
                engine.submit(greedy(f"{prefix} {client} {turn}", prompts[client], 30))
            for client in range(NUM_CLIENTS):
                reply = replies.tokens(f"{prefix} {client} {turn}")
                said.append(reply)
                prompts[client] += [*reply, *random.Random(client).choices(range(300), k=9)]
    return said


def test_eight_clients_hear_the_same_from_slots_ram_and_disk_as_without_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredContexts, "note_prefill", lambda self, num_tokens, seconds: None)
    checkpoint, replies = write_checkpoint(tmp_path / "tiny", tiny_config()), Replies()
    plain = conversation(checkpoint, None, replies, "plain")
    device = simulate(checkpoint, capacity=512, num_slots=1).device
    settings = KvSettings(20 * device.capabilities.page_bytes, 1 << 30, tmp_path / "kv")
    for run in ("first", "after a restart"):
        store = store_for(device, settings)
        assert conversation(checkpoint, store, replies, run) == plain
        store.check()
        store.close()
    assert replies.final("first 0 0").cache_source is None
    assert replies.final("after a restart 0 0").cache_source is CacheSource.DISK

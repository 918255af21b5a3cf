"""Real keys and values: a model on the simulated card says the same with and without a context store."""

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine_runs import Replies, greedy, running, store_for
from npuserve.core import CacheSource, Request
from npuserve.engine.contexts import StoredContexts
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore
from npuserve.sim.native import available
from simulated_device import simulate
from tiny_checkpoint import Tensors, tiny_config, write_checkpoint

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")

NUM_CLIENTS, NUM_TURNS = 8, 3
LFM2 = tiny_config(
    "lfm2",
    norm_eps=1e-5,
    layer_types=["conv", "full_attention"],
    block_auto_adjust_ff_dim=False,
    conv_L_cache=3,
    tie_word_embeddings=True,
)


def lfm2_tensors() -> Tensors:
    """Weights of a layer of each kind, small enough that the replies vary."""
    chance = np.random.default_rng(3)
    hidden, mlp, head, vocab = LFM2["hidden_size"], LFM2["intermediate_size"], LFM2["head_dim"], LFM2["vocab_size"]
    q, kv = LFM2["num_attention_heads"] * head, LFM2["num_key_value_heads"] * head

    def matrix(*shape: int) -> NDArray[np.float32]:
        return chance.normal(0, 0.15, shape).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return chance.normal(1, 0.2, size).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.embedding_norm.weight": norm(hidden)}
    for layer in ("model.layers.0.", "model.layers.1."):
        tensors |= {f"{layer}{name}.weight": norm(hidden) for name in ("operator_norm", "ffn_norm")}
        tensors |= {f"{layer}feed_forward.{name}.weight": matrix(mlp, hidden) for name in ("w1", "w3")}
        tensors[f"{layer}feed_forward.w2.weight"] = matrix(hidden, mlp)
    tensors |= {f"model.layers.0.conv.{name}.weight": matrix(rows, hidden) for name, rows in CONV_ROWS.items()}
    tensors["model.layers.0.conv.conv.weight"] = chance.normal(0, 0.6, (hidden, 1, 3)).astype(np.float32)
    attention = "model.layers.1.self_attn."
    for name, size in (("q", q), ("k", kv), ("v", kv)):
        tensors[f"{attention}{name}_proj.weight"] = matrix(size, hidden)
    tensors[f"{attention}out_proj.weight"] = matrix(hidden, q)
    tensors |= {f"{attention}{name}_layernorm.weight": norm(head) for name in ("q", "k")}
    return tensors


CONV_ROWS = {"in_proj": 3 * LFM2["hidden_size"], "out_proj": LFM2["hidden_size"]}


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


@pytest.mark.parametrize("ram_pages", [1000, 3, 0])
def test_a_recurrent_model_says_in_turns_what_it_says_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ram_pages: int
) -> None:
    monkeypatch.setattr(StoredContexts, "note_prefill", lambda self, num_tokens, seconds: None)
    checkpoint = write_checkpoint(tmp_path / "tiny", LFM2, lfm2_tensors())
    requests = [
        greedy(f"r{number}", random.Random(number % 3).choices(range(300), k=50 + 30 * number), 40)
        for number in range(5)
    ]
    alone, replies = Replies(), Replies()
    said: dict[Request, list[int]] = {}
    with running(simulate(checkpoint, capacity=512, num_slots=1).device, alone) as engine:
        for request in requests:
            engine.submit(request)
            said[request] = alone.tokens(request.id)
            assert engine.forget_contexts()
    assert len({tuple(reply) for reply in said.values()}) == len(requests)
    device = simulate(checkpoint, capacity=512, num_slots=1).device
    assert device.capabilities.recurrent
    store = store_for(device, KvSettings(ram_pages * device.capabilities.page_bytes + 1, 0))
    with running(device, replies, EngineSettings(max_running=4, quantum=8), store) as engine:
        for request in requests:
            engine.submit(request)
        for request in requests:
            assert replies.tokens(request.id) == said[request]
        last = requests[-1]
        context = [*last.prompt_ids, *said[last]]
        engine.submit(greedy("other", range(100), 3))
        engine.submit(greedy("follow-up", [*context, 7], 3))
        expected = len(context) - 1 if ram_pages > 100 else 0
        assert replies.final("follow-up").num_cached_tokens >= expected

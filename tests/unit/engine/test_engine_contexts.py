"""The engine with a context store: whatever was kept where, a reply is what a cold run gives."""

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_runs import Replies, cold, greedy, running, store_for
from npuserve.core import CacheSource, FinishReason, Request, SamplingParams
from npuserve.devices.null import NullDevice
from npuserve.engine.contexts import StoredContexts
from npuserve.engine.engine import Engine
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.settings import KvSettings
from patience import WAIT_S, wait_until

VOCAB = 500
LENGTH = 640
SLOT, RAM, DISK = CacheSource.SLOT, CacheSource.RAM, CacheSource.DISK


@pytest.fixture(autouse=True)
def no_computing_is_faster_than_restoring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The null device computes so fast that it would hardly ever be worth it."""
    monkeypatch.setattr(StoredContexts, "note_prefill", lambda self, num_tokens, seconds: None)


def null(*, num_slots: int = 2, recurrent: bool = False, **options: object) -> NullDevice:
    return NullDevice(
        vocab_size=VOCAB,
        num_slots=1 if recurrent else num_slots,
        max_rows=64,
        context_length=LENGTH,
        recurrent=recurrent,
        **options,  # type: ignore[arg-type]
    )


def expected(request: Request) -> list[int]:
    return cold(request, vocab_size=VOCAB, context_length=LENGTH)


def tokens_of(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def on_disk(folder: Path, *, ram_bytes: int = 0) -> KvSettings:
    return KvSettings(ram_bytes=ram_bytes, disk_bytes=1 << 30, folder=folder)


def test_a_follow_up_is_served_from_its_slot_then_ram_then_disk(tmp_path: Path) -> None:
    prompt = tokens_of(1, 200)
    replies, settings = Replies(), on_disk(tmp_path / "kv", ram_bytes=1 << 30)
    device = null(num_slots=1)
    store = store_for(device, settings)
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("first", prompt, 30))
        context = [*prompt, *replies.tokens("first")]
        assert (replies.final("first").num_cached_tokens, replies.final("first").cache_source) == (0, None)
        second = greedy("second", [*context, 7], 4)
        engine.submit(second)
        assert replies.tokens("second") == expected(second)
        assert (replies.final("second").num_cached_tokens, replies.final("second").cache_source) == (229, SLOT)
        engine.submit(greedy("other", tokens_of(2, 100)))
        replies.final("other")
        third = greedy("third", [*context, 8], 4)
        engine.submit(third)
        assert replies.tokens("third") == expected(third)
        assert (replies.final("third").num_cached_tokens, replies.final("third").cache_source) == (192, RAM)
    store.close()
    device = null(num_slots=1)
    store = store_for(device, settings)
    with running(device, replies, store=store) as engine:
        fourth = greedy("fourth", [*context, 9], 4)
        engine.submit(fourth)
        assert replies.tokens("fourth") == expected(fourth)
        assert (replies.final("fourth").num_cached_tokens, replies.final("fourth").cache_source) == (192, DISK)
    store.close()


def test_a_saved_page_is_used_up_to_where_a_prompt_differs() -> None:
    prompt = tokens_of(1, 128)
    replies, device = Replies(), null(num_slots=1)
    with running(device, replies, store=store_for(device)) as engine:
        engine.submit(greedy("a", prompt))
        engine.submit(greedy("b", tokens_of(2, 70)))
        replies.final("b")
        changed = greedy("c", [*prompt[:100], (prompt[100] + 1) % VOCAB, *prompt[101:]])
        engine.submit(changed)
        assert replies.tokens("c") == expected(changed)
        assert replies.final("c").num_cached_tokens == 100


@pytest.mark.parametrize("num_same", [0, 1, 20, 63])
def test_a_page_on_disk_is_used_up_to_where_a_prompt_differs_too(tmp_path: Path, num_same: int) -> None:
    prompt, replies, device = tokens_of(1, 200), Replies(), null(num_slots=1)
    store = store_for(device, on_disk(tmp_path / "kv"))
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", prompt))
        engine.submit(greedy("b", tokens_of(2, 70)))
        replies.final("b")
        assert store.drain(WAIT_S)
        place = 128 + num_same
        changed = greedy("c", [*prompt[:place], (prompt[place] + 1) % VOCAB, 5])
        engine.submit(changed)
        assert replies.tokens("c") == expected(changed)
        assert replies.final("c").num_cached_tokens == place
    store.close()


def test_two_conversations_equal_in_all_but_one_middle_turn() -> None:
    start, one, other, end = tokens_of(1, 150), tokens_of(2, 90), tokens_of(3, 90), tokens_of(4, 150)
    replies, device = Replies(), null(num_slots=1)
    with running(device, replies, store=store_for(device)) as engine:
        for number, turn in enumerate([one, other, one, other]):
            request = greedy(f"r{number}", [*start, *turn, *end], 40)
            engine.submit(request)
            assert replies.tokens(request.id) == expected(request)
    assert [replies.final(f"r{number}").num_cached_tokens for number in range(4)] == [0, 150, 384, 384]


def test_a_salt_keeps_contexts_apart() -> None:
    prompt = tokens_of(1, 200)
    replies, device = Replies(), null(num_slots=1)
    with running(device, replies, store=store_for(device)) as engine:
        for name, salt in [("a", "alice"), ("b", "bob"), ("c", "alice")]:
            engine.submit(greedy(name, prompt, salt=salt))
            replies.final(name)
    assert [replies.final(name).num_cached_tokens for name in "abc"] == [0, 0, 192]


def test_a_slot_of_another_conversation_is_left_alone_when_the_shared_start_is_stored() -> None:
    system, replies, device = tokens_of(1, 128), Replies(), null(num_slots=2)
    with running(device, replies, store=store_for(device)) as engine:
        engine.submit(greedy("a", [*system, *tokens_of(2, 300)]))
        context = [*system, *tokens_of(2, 300), *replies.tokens("a")]
        engine.submit(greedy("b", [*system, *tokens_of(3, 20)]))
        replies.final("b")
        engine.submit(greedy("a2", [*context, 1]))
        assert replies.final("a2").num_cached_tokens == len(context) - 1
    assert (replies.final("b").num_cached_tokens, replies.final("b").cache_source) == (128, RAM)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_start_that_requests_share_is_computed_once_though_they_come_together(mixed: bool) -> None:
    system, replies, device = tokens_of(1, 400), Replies(), null(num_slots=4)
    requests = [greedy(f"r{number}", [*system, *tokens_of(number, 30)]) for number in range(4)]
    engine = Engine(device, EngineSettings(num_slots=4, mixed=mixed), replies.deliver, store=store_for(device))
    for request in requests:
        engine.submit(request)
    engine.start()
    for request in requests:
        assert replies.tokens(request.id) == expected(request)
    assert engine.stop()
    assert [replies.final(request.id).num_cached_tokens for request in requests] == [0, 384, 384, 384]


@pytest.mark.parametrize("mixed", [False, True])
def test_eight_clients_with_overlapping_prefixes(mixed: bool) -> None:
    device, replies = null(num_slots=3), Replies()
    settings = EngineSettings(num_slots=3, chunk_size=48, mixed=mixed)
    system = tokens_of(0, 100)
    with running(device, replies, settings, store_for(device)) as engine:

        def client(number: int) -> None:
            prompt = [*system, *tokens_of(number % 3, 60)]
            for turn in range(5):
                request = greedy(f"c{number}t{turn}", prompt, 20)
                engine.submit(request)
                reply = replies.tokens(request.id)
                assert reply == expected(request)
                prompt += [*reply, *tokens_of(100 + number, 10)]

        join_all([threading.Thread(target=client, args=(number,)) for number in range(8)])
        assert engine.stats().num_tokens_cached > 8 * 4 * 100


def join_all(threads: list[threading.Thread]) -> None:
    """Run threads to their end; a failed assertion in one is a warning, which is an error."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_thousand_random_prefix_trees_give_no_different_token(tmp_path: Path) -> None:
    chance = random.Random(9)
    device, replies = null(num_slots=3), Replies()
    page_bytes = device.capabilities.page_bytes
    # Little room, so that everything is evicted, spilled and read back all the time.
    store = store_for(device, KvSettings(12 * page_bytes, 40 * 2 * page_bytes, tmp_path / "kv"))
    trees: list[list[list[int]]] = [[tokens_of(seed, 70)] for seed in range(20)]
    sources = dict.fromkeys([None, *CacheSource], 0)
    with running(device, replies, EngineSettings(num_slots=3, max_queue=1000), store) as engine:
        for first in range(0, 1000, 8):
            requests = []
            for number in range(first, first + 8):
                tree = chance.choice(trees)
                branch = chance.choice(tree)
                prompt = [*branch[: chance.randrange(1, len(branch) + 1)], *tokens_of(number, chance.randrange(1, 90))]
                requests.append(greedy(f"r{number}", prompt[: LENGTH - 30], chance.randrange(1, 30)))
                tree.append(list(requests[-1].prompt_ids))
                engine.submit(requests[-1])
            for request in requests:
                assert replies.tokens(request.id) == expected(request)
                sources[replies.final(request.id).cache_source] += 1
    store.check()
    store.close()
    assert min(sources.values()) >= 10, sources


@pytest.mark.parametrize("recurrent", [False, True])
def test_cancels_and_deadlines_in_every_phase_leave_the_books_in_order(tmp_path: Path, recurrent: bool) -> None:
    chance = random.Random(3)
    device, replies = null(recurrent=recurrent), Replies()
    store = store_for(device, on_disk(tmp_path / "kv", ram_bytes=8 * device.capabilities.page_bytes))
    requests = []
    with running(device, replies, EngineSettings(num_slots=2, max_queue=1000, quantum=8), store) as engine:
        for number in range(150):
            prompt = [*tokens_of(number % 7, 150), *tokens_of(number, number % 80)]
            requests.append(greedy(f"r{number}", prompt, 20))
            engine.submit(requests[-1])
            if number % 3 == 0:
                engine.cancel(f"r{chance.randrange(number + 1)}")
        for request in requests:
            final = replies.final(request.id)
            tokens = [token for event in replies.of(request.id) for token in event.token_ids]
            if final.finish is FinishReason.CANCELLED:
                assert tokens == expected(request)[: len(tokens)]
            else:
                assert tokens == expected(request)
    engine._contexts.check()
    store.close()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty, Path.unlink])
def test_a_bad_page_on_disk_is_computed_again(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder, prompt, replies = tmp_path / "kv", tokens_of(1, 300), Replies()
    device = null()
    store = store_for(device, on_disk(folder))
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", prompt))
        replies.final("a")
    third = store.chain("").key(2, prompt)
    store.close()
    (path,) = folder.glob(f"{third.hex()}-*")
    damage(path)
    device = null(num_slots=1)
    store = store_for(device, on_disk(folder))
    with running(device, replies, store=store) as engine:
        for name in "bc":
            request = greedy(name, prompt)
            engine.submit(request)
            assert replies.tokens(name) == expected(request)
            engine.submit(greedy(f"{name} displaced", tokens_of(2, 10)))
            replies.final(f"{name} displaced")
            assert store.drain(WAIT_S)
    store.close()
    assert [replies.final(name).num_cached_tokens for name in "bc"] == [128, 256]
    assert path.exists()
    assert len(caplog.records) == (0 if damage is Path.unlink else 1)


def test_a_vanished_folder_does_not_stop_the_serving(tmp_path: Path) -> None:
    folder, replies, device = tmp_path / "kv", Replies(), null(num_slots=1)
    store = store_for(device, on_disk(folder))
    with running(device, replies, store=store) as engine:
        for number, prompt in enumerate([tokens_of(1, 200), tokens_of(2, 200), tokens_of(1, 200)]):
            request = greedy(f"r{number}", prompt)
            engine.submit(request)
            assert replies.tokens(request.id) == expected(request)
            assert store.drain(WAIT_S)
            shutil.rmtree(folder, ignore_errors=True)
    store.close()


@pytest.mark.parametrize(
    ("tier", "num_cached", "source"),
    [(None, 0, None), (SLOT, 192, RAM), (RAM, 199, SLOT), (DISK, 199, SLOT)],
)
def test_contexts_are_forgotten_everywhere_or_in_one_tier(
    tmp_path: Path, tier: CacheSource | None, num_cached: int, source: CacheSource | None
) -> None:
    prompt, replies, device = tokens_of(1, 200), Replies(), null(num_slots=1)
    store = store_for(device, on_disk(tmp_path / "kv", ram_bytes=1 << 30))
    with running(device, replies, store=store) as engine:
        engine.submit(greedy("a", prompt))
        replies.final("a")
        wait_until(lambda: store.stats().ram.entries == 3)
        assert engine.forget_contexts(tier)
        engine.submit(greedy("b", prompt))
        assert (replies.final("b").num_cached_tokens, replies.final("b").cache_source) == (num_cached, source)
    store.close()


def sampled(request_id: str, prompt: list[int], seed: int) -> Request:
    return Request(request_id, tuple(prompt), SamplingParams(temperature=1.0, seed=seed, max_tokens=100))


@pytest.mark.parametrize("quantum", [1, 8, 32, 100])
def test_a_recurrent_family_runs_many_requests_in_turns(quantum: int) -> None:
    device, replies = null(recurrent=True), Replies()
    settings = EngineSettings(max_running=3, quantum=quantum, max_queue=100)
    requests = [sampled(f"r{number}", tokens_of(number, 30 + 40 * number), number) for number in range(6)]
    with running(device, replies, settings, store_for(device)) as engine:
        for request in requests:
            engine.submit(request)
        for request in requests:
            assert replies.tokens(request.id) == expected(request)
            assert replies.final(request.id).num_cached_tokens == 0
        # Swaps cost no computing: the device ran every token of every request once.
        stats = engine.stats()
        assert stats.num_tokens_out == 600
    store_stats = stats.store
    assert store_stats is not None


def test_turns_go_on_when_the_store_has_no_room() -> None:
    device, replies = null(recurrent=True), Replies()
    store = store_for(device, KvSettings(ram_bytes=1))
    requests = [greedy(f"r{number}", tokens_of(number, 100), 50) for number in range(3)]
    with running(device, replies, EngineSettings(quantum=16), store) as engine:
        for request in requests:
            engine.submit(request)
        for request in requests:
            assert replies.tokens(request.id) == expected(request)


def test_a_recurrent_conversation_is_taken_up_where_its_state_was_saved() -> None:
    device, replies = null(recurrent=True), Replies()
    prompt = tokens_of(1, 150)
    with running(device, replies, store=store_for(device)) as engine:
        engine.submit(greedy("a", prompt, 20))
        context = [*prompt, *replies.tokens("a")]
        engine.submit(greedy("b", tokens_of(2, 100), 20))
        replies.final("b")
        follow_up = greedy("c", [*context, 5], 20)
        engine.submit(follow_up)
        assert replies.tokens("c") == expected(follow_up)
        engine.submit(greedy("d", tokens_of(3, 100), 20))
        changed = greedy("e", [*context[:140], 5], 20)
        engine.submit(changed)
        assert replies.tokens("e") == expected(changed)
    assert replies.final("c").num_cached_tokens == 169
    assert replies.final("e").num_cached_tokens == 128

"""Whatever arrives, leaves or fails, in any order: the scheduler on the null device keeps its promises."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from npuserve.core import Event, FinishReason, Request, Row, SamplingParams
from npuserve.devices.null import NullDevice
from npuserve.engine.sampler import Sampler
from npuserve.engine.scheduler import Batch, Scheduler
from npuserve.engine.sequence import Sequence
from npuserve.engine.settings import EngineSettings
from npuserve.errors import OverloadedError
from scheduling import next_batch

VOCAB_SIZE = 12
CONTEXT_LENGTH = 24

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=CONTEXT_LENGTH - 1).map(tuple)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 3),
    max_tokens=st.integers(1, 30),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=2),
)


def alone(request: Request) -> tuple[list[int], FinishReason]:
    """What `request` gives on a fresh device, its prompt in one step, without a scheduler."""
    device = NullDevice(vocab_size=VOCAB_SIZE, num_slots=1, max_rows=CONTEXT_LENGTH, context_length=CONTEXT_LENGTH)
    sampling = request.sampling
    sampler = Sampler(sampling, len(request.prompt_ids))
    tokens, num_fed = list(request.prompt_ids), 0
    while True:
        rows = [Row(0, at, tokens[at], at == len(tokens) - 1) for at in range(num_fed, len(tokens))]
        num_fed = len(tokens)
        token = sampler.sample(device.step(rows).logits[0], tokens)
        generated = tokens[len(request.prompt_ids) :]
        if token in sampling.stop_token_ids:
            return generated, FinishReason.STOP
        tokens.append(token)
        if len(generated) + 1 == sampling.max_tokens or len(tokens) == CONTEXT_LENGTH:
            return [*generated, token], FinishReason.LENGTH


@dataclass
class Client:
    """What one request has received, and how long it has been passed over while it could have run."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    num_steps_waited: int = 0


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_slots=st.integers(1, 4),
        chunk_size=st.integers(1, 9),
        mixed=st.booleans(),
        max_queue=st.integers(0, 4),
        max_rows=st.integers(1, 10),
        recurrent=st.booleans(),
        swaps=st.booleans(),
        max_running=st.integers(1, 4),
        quantum=st.integers(1, 9),
    )
    def begin(
        self,
        num_slots: int,
        chunk_size: int,
        mixed: bool,
        max_queue: int,
        max_rows: int,
        recurrent: bool,
        swaps: bool,
        max_running: int,
        quantum: int,
    ) -> None:
        self.device = NullDevice(
            vocab_size=VOCAB_SIZE,
            num_slots=1 if recurrent else num_slots,
            max_rows=max_rows,
            context_length=CONTEXT_LENGTH,
            recurrent=recurrent,
        )
        self.mixed = mixed
        self.max_queue = max_queue
        settings = EngineSettings(num_slots, chunk_size, mixed, max_queue, max_running, quantum)
        # With turns nothing is brought back here: the worst a store can do.
        self.takes_turns = swaps and recurrent
        self.scheduler = Scheduler(settings, self.device.capabilities, swaps=swaps)
        self.most_running = max_running if self.takes_turns else self.scheduler.num_slots
        self.clients: dict[str, Client] = {}

    @rule(prompt=prompts, sampling=samplings, salt=st.sampled_from(["", "x"]))
    def submit(self, prompt: tuple[int, ...], sampling: SamplingParams, salt: str) -> None:
        request = Request(f"r{len(self.clients)}", prompt, sampling, cache_salt=salt)
        num_alive = len(self.scheduler.alive)
        try:
            self.scheduler.add(Sequence(request))
        except OverloadedError:
            assert num_alive == self.most_running + self.max_queue
        else:
            self.clients[request.id] = Client(request)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def follow_up(self, data: st.DataObject) -> None:
        """Continue a finished or running reply, as a conversation does."""
        client = data.draw(st.sampled_from(list(self.clients.values())))
        prompt = (*client.request.prompt_ids, *client.tokens, 1)
        if len(prompt) < CONTEXT_LENGTH:
            self.submit(prompt, data.draw(samplings), client.request.cache_salt)

    @rule(num_steps=st.integers(1, 5))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            batch = next_batch(self.scheduler, 0.0)
            if batch.rows:
                self.watch_fairness(batch)
                self.receive(self.scheduler.complete(batch, self.sample(batch), 0.0))

    @rule()
    def fail_a_step(self) -> None:
        batch = next_batch(self.scheduler, 0.0)
        members = {sequence.id for sequence, _ in batch.parts}
        events = self.scheduler.fail([sequence for sequence, _ in batch.parts], "broken", 0.0)
        assert {event.request_id for event in events} == members
        self.receive(events)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())))
        was_alive = client.finish is None
        events = self.scheduler.cancel(client.request.id, 0.0)
        assert len(events) == was_alive
        self.receive(events)

    @rule()
    def run_until_idle(self) -> None:
        # Every step runs a row of somebody, so this many suffice; with turns, before each of which all is lost, no turn
        # brings less than a row further.
        most = sum(sequence.num_pending + sequence.request.sampling.max_tokens for sequence in self.scheduler.alive)
        self.step((most + 1) * (CONTEXT_LENGTH if self.takes_turns else 1))
        assert self.scheduler.alive == ()

    @invariant()
    def books_add_up(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            alive = {client.request.id for client in self.clients.values() if client.finish is None}
            assert alive == {sequence.id for sequence in self.scheduler.alive}

    def teardown(self) -> None:
        if hasattr(self, "scheduler"):
            self.run_until_idle()

    def sample(self, batch: Batch) -> dict[str, int]:
        logits = self.device.step(batch.rows).logits
        sampled = batch.sampled
        assert len(logits) == len(sampled)
        return {
            sequence.id: sequence.sampler.sample(row, sequence.tokens)
            for sequence, row in zip(sampled, logits, strict=True)
        }

    def watch_fairness(self, batch: Batch) -> None:
        """A ready stream and the oldest prompt wait for one step at most, with `mixed` for none."""
        if self.takes_turns:
            return
        running, served = self.scheduler.running, {sequence.id for sequence, _ in batch.parts}
        assert not (self.scheduler.queued and len(running) < self.scheduler.num_slots), "a slot lies idle"
        due = [sequence for sequence in running if sequence.num_pending == 1]
        due += [sequence for sequence in running if sequence.num_pending > 1][:1]
        for sequence in due:
            client = self.clients[sequence.id]
            client.num_steps_waited = 0 if sequence.id in served else client.num_steps_waited + 1
            assert client.num_steps_waited <= (0 if self.mixed else 1), f"{sequence.id} starves"

    def receive(self, events: list[Event]) -> None:
        for event in events:
            client = self.clients[event.request_id]
            assert client.finish is None, f"{event} after the final one"
            assert event.num_cached_tokens < len(client.request.prompt_ids)
            client.tokens += event.token_ids
            client.finish = event.finish
            if event.finish is not None:
                self.compare(client)

    def compare(self, client: Client) -> None:
        expected, finish = alone(client.request)
        if client.finish in (FinishReason.CANCELLED, FinishReason.FAILED):
            assert client.tokens == expected[: len(client.tokens)]
        else:
            assert (client.tokens, client.finish) == (expected, finish)


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSchedulerKeepsItsPromises = SchedulerMachine.TestCase

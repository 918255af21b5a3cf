"""A served null device on a real socket, for the tests that talk to it as clients do."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from brake import Brake
from npuserve.core import Row
from npuserve.devices.base import StepResult, nothing
from npuserve.devices.null import NullDevice
from npuserve.engine.engine import Engine
from npuserve.engine.settings import EngineSettings
from npuserve.kvstore.store import ContextStore
from npuserve.server.app import create_app
from npuserve.server.event_router import EventRouter
from npuserve.server.keys import KeyRing
from npuserve.server.running import uvicorn_config
from npuserve.server.sampling import SamplingDefaults
from npuserve.server.state import HttpSettings, ServedModel, ServerState
from npuserve.server.tls import TlsFiles
from npuserve.text.chat_template import ChatTemplate
from npuserve.text.tokenizer import Tokenizer
from patience import WAIT_S
from tiny_tokenizer import tiny_tokenizer

END_OF_TURN = 2  # <|im_end|> of the tiny tokenizer
GREEDY = SamplingDefaults(temperature=0.0)


@dataclass(frozen=True)
class Served:
    """A running server: where it listens and what is behind it."""

    port: int
    state: ServerState
    tokenizer: Tokenizer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Script:
    """Replies by what the prompt's text holds: the first key found in it names the reply.

    A reply is text or token ids, followed by the end of the turn; `endless` ones repeat for ever.
    """

    def __init__(self, replies: dict[str, str | list[int]], *, endless: bool = False) -> None:
        self._tokenizer = tiny_tokenizer()
        self._replies = replies
        self._endless = endless
        self._plans: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, history: tuple[int, ...]) -> int:
        # The shortest history asked about is the prompt, as prompts are fed whole before a token is sampled.
        for prompt, plan in self._plans.items():
            said = history[len(prompt) :]
            if history[: len(prompt)] == prompt and said == tuple(self._token(plan, i) for i in range(len(said))):
                return self._token(plan, len(said))
        plan = self._plans[history] = self._plan(history)
        return self._token(plan, 0)

    def _token(self, plan: list[int], position: int) -> int:
        if self._endless:
            return plan[position % len(plan)]
        return plan[position] if position < len(plan) else END_OF_TURN

    def _plan(self, prompt: tuple[int, ...]) -> list[int]:
        text = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        reply = next((reply for key, reply in self._replies.items() if key in text), "")
        return reply if isinstance(reply, list) else self._tokenizer.encode(reply, add_special_tokens=False).ids


class _Braked(NullDevice):
    def __init__(self, brake: Brake, **options: Any) -> None:
        super().__init__(**options)
        self._brake = brake

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        self._brake.pass_by()
        return super().step(rows, meanwhile)


def null_state(
    script: Callable[[tuple[int, ...]], int] | None = None,
    *,
    settings: EngineSettings | None = None,
    defaults: SamplingDefaults = GREEDY,
    template: str | None = None,
    step_delay_s: float = 0.0,
    context_length: int = 512,
    keys: KeyRing | None = None,
    http: HttpSettings | None = None,
    store: ContextStore | None = None,
    brake: Brake | None = None,
    **device_options: object,
) -> ServerState:
    """A server's state over a null device with the tiny tokenizer; greedy unless a request says otherwise.

    Each step passes by the `brake`.
    """
    tokenizer = Tokenizer(tiny_tokenizer())
    device = _Braked(
        brake or Brake(),
        vocab_size=tokenizer.vocab_size,
        script=script,
        context_length=context_length,
        step_delay_s=step_delay_s,
        **device_options,
    )
    router = EventRouter()
    engine = Engine(device, settings or EngineSettings(), router.deliver, store=store)
    model = ServedModel(
        name="tiny",
        tokenizer=tokenizer,
        template=ChatTemplate(template),
        context_length=context_length,
        vocab_size=tokenizer.vocab_size,
        end_ids=frozenset({END_OF_TURN}),
        defaults=defaults,
    )
    return ServerState(model, engine, router, keys or KeyRing(), http or HttpSettings())


@contextmanager
def serving(
    state: ServerState, *, hosts: frozenset[str] | None = None, tls: TlsFiles | None = None
) -> Iterator[Served]:
    """Serve `state` from a thread until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn_config(create_app(state, hosts=hosts), tls=tls)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="server")
    thread.start()
    try:
        yield Served(listener.getsockname()[1], state, state.model.tokenizer)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"

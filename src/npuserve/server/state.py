"""What every route needs: the model as text, the engine, and whether the server is going away."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from npuserve.engine.base import AnyEngine
from npuserve.server.body import PendingBodies
from npuserve.server.event_router import EventRouter
from npuserve.server.keys import KeyRing
from npuserve.server.live_replies import LiveReplies
from npuserve.server.sampling import SamplingDefaults
from npuserve.text.chat_template import ChatTemplate
from npuserve.text.grammar_compiler import GrammarCompiler
from npuserve.text.tokenizer import Tokenizer
from npuserve.text.tools.formats import ToolFormat, format_of

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model that is served, as its clients see it.

    `vocab_size` is the width of the logits, `end_ids` the tokens that end a turn, `think` the default of templates
    that can think. With `splits_reasoning` thoughts are told from the reply. `unconstrained` says why replies cannot be
    held to a grammar, with the remedy; None where they can.
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int
    vocab_size: int
    end_ids: frozenset[int] = frozenset()
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    think: bool = False
    splits_reasoning: bool = False
    unconstrained: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    grammars: GrammarCompiler = field(init=False)
    tool_format: ToolFormat = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammars", GrammarCompiler(self.tokenizer, self.vocab_size, self.end_ids))
        object.__setattr__(self, "tool_format", format_of(self.template.source))


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How the server meets its clients.

    A request is ended `request_timeout_s` after its reply began, never for 0. `grace_s` is what running replies may
    take once the server was told to stop. `vllm_metrics` adds vLLM's names to /metrics.
    """

    cors_origins: frozenset[str] = frozenset()
    request_timeout_s: float = 0.0
    grace_s: float = 8.0
    vllm_metrics: bool = False


@dataclass(slots=True)
class ServerState:
    """Shared by all requests; belongs to the event loop.

    `routes` are handlers by path and method that a command adds to the common ones, or puts in their place.
    """

    model: ServedModel
    engine: AnyEngine
    router: EventRouter
    keys: KeyRing = field(default_factory=KeyRing)
    settings: HttpSettings = field(default_factory=HttpSettings)
    live: LiveReplies = field(default_factory=LiveReplies)
    pending_bodies: PendingBodies = field(default_factory=PendingBodies)
    backend: str = ""
    routes: Mapping[str, Mapping[str, Handler]] = field(default_factory=dict)
    stopping: bool = False

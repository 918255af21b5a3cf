"""What every route needs: the model as text, the engine, and whether the server is going away."""

import time
from dataclasses import dataclass, field

from npuserve.engine.engine import Engine
from npuserve.server.event_router import EventRouter
from npuserve.server.sampling import SamplingDefaults
from npuserve.text.chat_template import ChatTemplate
from npuserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model that is served, as its clients see it.

    `vocab_size` is the width of the logits, `end_ids` the tokens that end a turn, `think` the default of templates
    that can think.
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int
    vocab_size: int
    end_ids: frozenset[int] = frozenset()
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    think: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(slots=True)
class ServerState:
    """Shared by all requests; belongs to the event loop."""

    model: ServedModel
    engine: Engine
    router: EventRouter
    stopping: bool = False

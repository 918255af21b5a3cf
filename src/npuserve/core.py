"""The vocabulary of the engine: what a client asks for, what a device is fed, what comes back.

Plain data from the standard library; every layer above may import it, and it imports nothing but errors.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

# A context is kept in pages of this many tokens.
PAGE_TOKENS = 64


class Row(NamedTuple):
    """One token at one position of one slot: the unit of device work.

    A step is any list of rows in which the rows of one slot have consecutive ascending positions and stand
    together. Batching, chunked prefill and mixed steps are only choices of rows.
    """

    slot: int
    position: int
    token: int
    want_logits: bool


class CacheSource(StrEnum):
    """Where a prompt's first tokens were found: still in a slot, in RAM, on disk."""

    SLOT = "slot"
    RAM = "ram"
    DISK = "disk"


class FinishReason(StrEnum):
    """Why a request ended; the value is what logs and replies say."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when a reply ends; ranges are checked where a request is parsed.

    temperature 0 is greedy. top_k is 1..64 (the card's sampler takes no more). The penalties follow the
    OpenAI reference (presence, frequency: over generated tokens) and CTRL (repetition: over prompt and
    generated tokens). `seed` is 64 bit; the draw at a position depends on (seed, position) alone.
    """

    temperature: float = 1.0
    top_k: int = 64
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    logit_bias: tuple[tuple[int, float], ...] = ()


class Constraint(Protocol):
    """Which tokens may follow in one sequence; asked once before each token and told each one after it was chosen."""

    def allowed(self) -> bytes | None:
        """One bit per token, that of token i in byte i // 8 at place i % 8; None when every token is allowed.

        Raises DeviceError when the constraint can no longer be kept: the request must fail, never go on without it.
        """

    def accept(self, token: int) -> None:
        """Go past `token`; returns at once, the work that the next `allowed` needs is done meanwhile."""


class TokenLogprob(NamedTuple):
    """Natural log of the probability that the model gave a token, before bias, penalties, temperature and filters.

    `top` lists the most likely tokens in its place as (token, logprob), highest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One accepted request: token ids in, token ids out. Text, templates and stop strings stay outside.

    `stop_token_ids` of the sampling parameters already hold the model's end-of-turn ids (unless the client
    asked to ignore them). `arrival_s` is monotonic time, and so is `deadline_s`, at which it is cancelled in whatever
    phase it is. Contexts are reused between requests of one `cache_salt` only.
    `num_logprobs` asks for the log probability of each generated token and of that many most likely ones, with
    `prompt_logprobs` of those of the prompt too, which is then computed afresh. A `constraint` serves one request only.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_s: float = 0.0
    cache_salt: str = ""
    deadline_s: float | None = None
    num_logprobs: int | None = None
    prompt_logprobs: bool = False
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """What a finished request cost: seconds in the queue, in prefill and in decode."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """News of one request, in order; the one with `finish` set is the last and there is exactly one such.

    `token_ids` are newly generated tokens (a stop token is not among them). `error` is a sentence for the
    client, set with FinishReason.FAILED and with a cancel that was not the client's. `cache_source` is what gave most
    of the `num_cached_tokens` that the prompt did not cost, None without any. Where they were asked for, `logprobs`
    has an entry for each of `token_ids` and one for the stop token; `prompt_logprobs`, in the first of these events,
    one for each prompt token but the first. `num_prompt_tokens` is told with `finish` by a device that got the prompt
    as text and counted its tokens itself.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    cache_source: CacheSource | None = None
    timings: Timings = field(default_factory=Timings)
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    num_prompt_tokens: int | None = None

"""One request while the engine works on it."""

from npuserve.core import CacheSource, FinishReason, Request, Row, Timings, TokenLogprob
from npuserve.engine.sampler import Sampler


class Sequence:
    """The tokens of one request and how far the device has got with them.

    `tokens` is the prompt, then what was generated. The first `num_computed` of them are in the slot; the rest
    must catch up, and the logits of the last one give the next token. There is no other phase, except that while
    `is_restoring` saved pages are being put into its slot.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens = list(request.prompt_ids)
        self.sampler = Sampler(request.sampling, len(request.prompt_ids))
        self.slot: int | None = None
        self.num_computed = 0
        self.num_cached = 0
        self.cache_source: CacheSource | None = None
        self.is_restoring = False
        self.num_rows_in_turn = 0
        self._num_computed_before = 0
        self.is_counted = False
        self.finish: FinishReason | None = None
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._num_prompt_noted = 0

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def num_pending(self) -> int:
        """Tokens that the device has not seen yet; 1 or more while the sequence is alive."""
        return len(self.tokens) - self.num_computed

    def admit(self, slot: int, num_cached: int, now_s: float) -> None:
        """Take `slot`, which holds the first `num_cached` tokens already; prompt logprobs need all rows anew."""
        is_first = self.admitted_s is None
        if is_first and self.request.prompt_logprobs:
            num_cached = 0
        self.slot = slot
        self.num_computed = num_cached
        self.num_rows_in_turn = 0
        if is_first:
            self.admitted_s = now_s
            self.note_cached(num_cached, CacheSource.SLOT)

    def note_cached(self, num_tokens: int, source: CacheSource) -> None:
        """Say that the first `num_tokens` of the prompt cost nothing, and what gave most of them."""
        self.num_cached = num_tokens
        self.cache_source = source if num_tokens else None

    def note_run(self, count: int) -> None:
        """Book the next `count` pending tokens as run; those that had been run before do not count for the turn."""
        self.num_computed += count
        self.num_rows_in_turn += max(0, min(count, self.num_computed - self._num_computed_before))
        self._num_computed_before = max(self._num_computed_before, self.num_computed)

    def next_rows(self, count: int) -> list[Row]:
        """Rows of the next `count` pending tokens; the last of all pending ones wants logits, or all of a prompt."""
        assert self.slot is not None, f"{self.id} has no slot"
        start, last = self.num_computed, len(self.tokens) - 1
        every = self.request.prompt_logprobs
        return [Row(self.slot, at, self.tokens[at], every or at == last) for at in range(start, start + count)]

    def note_logprob(self, logprob: TokenLogprob) -> None:
        """Keep that of the token to come for its event."""
        self._logprobs.append(logprob)

    def next_unnoted(self) -> int:
        """Position of the first prompt token whose log probability is still to be noted."""
        return self._num_prompt_noted + 1

    def note_prompt_logprob(self, logprob: TokenLogprob) -> None:
        """Keep that of the prompt token at `next_unnoted` for the first event."""
        self._prompt_logprobs.append(logprob)
        self._num_prompt_noted += 1

    def take_logprobs(self) -> tuple[tuple[TokenLogprob, ...], tuple[TokenLogprob, ...]]:
        """What was noted since the last call: of generated tokens, of prompt tokens."""
        taken = tuple(self._logprobs), tuple(self._prompt_logprobs)
        self._logprobs.clear()
        self._prompt_logprobs.clear()
        return taken

    def timings(self, now_s: float) -> Timings:
        """What it has cost until `now_s`, in which phase."""
        admitted_s = now_s if self.admitted_s is None else self.admitted_s
        first_token_s = now_s if self.first_token_s is None else self.first_token_s
        return Timings(admitted_s - self.request.arrival_s, first_token_s - admitted_s, now_s - first_token_s)

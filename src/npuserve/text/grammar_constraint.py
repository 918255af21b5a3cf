"""One reply held to a grammar: its masks are computed beside the device's work."""

from concurrent.futures import Executor, Future

import llguidance

from npuserve.errors import DeviceError, RequestError
from npuserve.text.reasoning import CLOSE_TAG, OPEN_TAG
from npuserve.text.tokenizer import Tokenizer

# The parser's own limits end a mask within some milliseconds; this is for a machine that hangs.
_MASK_TIME_LIMIT_S = 2.0


class ThoughtGate:
    """Lets thoughts pass before the grammar begins: until the closing tag anything may come but the end of the turn.

    When `opened` is not set the reply may begin with the opening tag, or with the grammar at once.
    """

    def __init__(
        self, tokenizer: Tokenizer, matcher_tokenizer: llguidance.LLTokenizer, end_ids: frozenset[int], opened: bool
    ) -> None:
        self._bytes = tokenizer.token_bytes
        self._retokenize = matcher_tokenizer.tokenize_bytes
        self._open_id = None if opened else tokenizer.id_of(OPEN_TAG)
        self._is_first = not opened
        self._tail = b""
        self.inside = opened
        self._anything = _all_but(end_ids, tokenizer.vocab_size, matcher_tokenizer.vocab_size)

    def allowed(self, mask: bytes) -> bytes:
        """The grammar's own `mask`, widened by what thoughts may be."""
        if self.inside:
            return self._anything
        if self._is_first and self._open_id is not None:
            widened = bytearray(mask)
            widened[self._open_id // 8] |= 1 << self._open_id % 8
            return bytes(widened)
        return mask

    def accept(self, token: int) -> list[int]:
        """The tokens that are the grammar's: `token`, or what of it follows the closing tag."""
        opens, self._is_first = self._is_first and token == self._open_id, False
        if opens:
            self.inside = True
            return []
        if not self.inside:
            return [token]
        text = self._tail + self._bytes[token]
        thought, tag, rest = text.partition(CLOSE_TAG.encode())
        self._tail = thought[-len(CLOSE_TAG) + 1 :]
        if not tag:
            return []
        self.inside = False
        rest = rest.lstrip()
        return list(self._retokenize(rest)) if rest else []


def _all_but(ids: frozenset[int], num_tokens: int, width: int) -> bytes:
    mask = bytearray(-(-width // 32) * 4)
    whole, rest = divmod(num_tokens, 8)
    mask[:whole] = b"\xff" * whole
    if rest:
        mask[whole] = (1 << rest) - 1
    for token in ids:
        mask[token // 8] &= ~(1 << token % 8)
    return bytes(mask)


class GrammarConstraint:
    """A Constraint of one reply. `first` is the mask of its first token; the others are made by `executor`.

    `failure` is set when the grammar turned out too complex on the way: the client's fault, whatever the engine says.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        first: bytes,
        executor: Executor,
        param: str,
        gate: ThoughtGate | None = None,
    ) -> None:
        self._matcher = matcher
        self._mask = first
        self._executor = executor
        self._param = param
        self._gate = gate
        self._pending: Future[bytes] | None = None
        self.failure: RequestError | None = None

    def allowed(self) -> bytes:
        """See Constraint; waits for the mask when it is not there yet."""
        if self._pending is not None:
            try:
                self._mask = self._pending.result(_MASK_TIME_LIMIT_S)
            except Exception as error:
                message = f"{self._param} became too complex to be enforced; simplify it"
                self.failure = RequestError(message, param=self._param, code="grammar_too_complex")
                raise DeviceError(message) from error
            self._pending = None
        return self._mask if self._gate is None else self._gate.allowed(self._mask)

    def accept(self, token: int) -> None:
        """See Constraint."""
        tokens = [token] if self._gate is None else self._gate.accept(token)
        # Nothing but the end follows what is complete, however often it is said.
        if tokens and not self._matcher.is_stopped():
            self._pending = self._executor.submit(self._advance, tokens)

    def _advance(self, tokens: list[int]) -> bytes:
        if not self._matcher.consume_tokens(tokens):
            raise DeviceError("the grammar does not allow a token that was chosen")
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise DeviceError("the grammar's parser gave up")
        return mask

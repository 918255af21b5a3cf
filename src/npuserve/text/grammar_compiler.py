"""Grammars to constraints on tokens, by llguidance."""

import atexit
import logging
import re
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import NamedTuple

import llguidance

from npuserve.errors import RequestError
from npuserve.text.grammar import Grammar
from npuserve.text.grammar_constraint import GrammarConstraint, ThoughtGate
from npuserve.text.grammar_guard import GrammarGuard
from npuserve.text.grammar_probe import STACK_BYTES
from npuserve.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_MAX_KEPT = 32
# Deep grammars need deep stacks, here and where the masks are made.
_STACK_BYTES = 4 * STACK_BYTES
_guard = GrammarGuard()
atexit.register(_guard.close)
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: \[([^\]]{1,200})\]")
_KEYWORD = re.compile(r"[\w$-]{1,40}")


def deep_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads whose stacks hold what the compiler was tried with."""
    executor = ThreadPoolExecutor(count, name)
    before = threading.stack_size(_STACK_BYTES)
    try:
        # Work that waits for all of the threads makes the executor start them now.
        barrier = threading.Barrier(count)
        wait([executor.submit(barrier.wait) for _ in range(count)])
    finally:
        threading.stack_size(before)
    return executor


class _Compiled(NamedTuple):
    """A grammar at its beginning, never moved, and the mask there."""

    matcher: llguidance.LLMatcher
    first: bytes


class GrammarCompiler:
    """Compiles for one tokenizer; safe to use from several threads, those of `deep_threads`. It may take seconds.

    `vocab_size` is the width of the logits. Constraints compute their masks on a thread of the compiler's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar, thoughts: str | None = None) -> GrammarConstraint:
        """A fresh constraint to `grammar`, complete with the mask of its first token.

        With `thoughts` it begins after the model's reasoning: `open` where the prompt ends inside the tags, `may` where
        the reply may open them. Raises RequestError for a grammar that is wrong, too large or cannot be enforced here.
        """
        if not self._end_ids:
            message = f"{grammar.param} cannot be enforced on a model without an end-of-turn token"
            raise RequestError(message, param=grammar.param, code="unsupported")
        text = grammar.text(self._control_id)
        with self._lock:
            compiled = self._kept.get(text)
            if compiled is not None:
                self._kept.move_to_end(text)
            tokenizer, masks = self._llguidance_tokenizer, self._masks
        if compiled is None:
            _guard.check(text, grammar.param)
            compiled = self._compiled(text, grammar.param, tokenizer)
            with self._lock:
                self._kept[text] = compiled
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        gate = None if thoughts is None else ThoughtGate(self._tokenizer, tokenizer, self._end_ids, thoughts == "open")
        return GrammarConstraint(compiled.matcher.deep_copy(), compiled.first, masks, grammar.param, gate)

    def _control_id(self, tag: str) -> int | None:
        token = self._tokenizer.id_of(tag)
        if token is None:
            return None
        with self._lock:
            return token if self._llguidance_tokenizer.is_special_token(token) else None

    @cached_property
    def _masks(self) -> ThreadPoolExecutor:
        return deep_threads(2, "grammar")

    @cached_property
    def _llguidance_tokenizer(self) -> llguidance.LLTokenizer:
        """Half a second for a vocabulary of 49k, so it is made when it is first needed."""
        return llguidance.LLTokenizer(
            self._tokenizer.unspelled_definition(), n_vocab=self._vocab_size, eos_token=sorted(self._end_ids)
        )

    def _compiled(self, text: str, param: str, tokenizer: llguidance.LLTokenizer) -> _Compiled:
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
        first = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            _log.info("a grammar from %s was refused: %s", param, matcher.get_error())
            raise RequestError(_refusal(param, matcher.get_error()), param=param, code="bad_grammar")
        if not any(first):
            raise RequestError(f"{param} allows no reply at all", param=param, code="bad_grammar")
        return _Compiled(matcher, first)


def _refusal(param: str, error: str) -> str:
    """A sentence of ours: the library's may quote the grammar at length."""
    found = _UNKNOWN_KEYWORDS.search(error)
    if found:
        return f"{param} uses {', '.join(_KEYWORD.findall(found[1])[:8])}, which cannot be enforced; leave it out"
    return f"{param} is malformed, too complex, or uses what cannot be enforced (such as look-around); simplify it"

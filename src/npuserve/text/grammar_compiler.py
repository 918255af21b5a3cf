"""Grammars to constraints on tokens, by llguidance."""

import logging
import re
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import llguidance

from npuserve.errors import RequestError
from npuserve.text.grammar import Grammar
from npuserve.text.grammar_constraint import GrammarConstraint, ThoughtGate
from npuserve.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_MAX_KEPT = 32
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: \[([^\]]{1,200})\]")
_KEYWORD = re.compile(r"[\w$-]{1,40}")


class _Compiled(NamedTuple):
    """A grammar at its beginning, never moved, and the mask there."""

    matcher: llguidance.LLMatcher
    first: bytes


class GrammarCompiler:
    """Compiles for one tokenizer; safe to use from several threads, and what it does may take a second.

    `vocab_size` is the width of the logits. Constraints compute their masks on a thread of the compiler's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(2, "grammar")

    def compile(self, grammar: Grammar, thoughts: str | None = None) -> GrammarConstraint:
        """A fresh constraint to `grammar`, complete with the mask of its first token.

        With `thoughts` it begins after the model's reasoning: `open` where the prompt ends inside the tags, `may` where
        the reply may open them. Raises RequestError for a grammar that is wrong, too large or cannot be enforced here.
        """
        if not self._end_ids:
            message = f"{grammar.param} cannot be enforced on a model without an end-of-turn token"
            raise RequestError(message, param=grammar.param, code="unsupported")
        with self._lock:
            compiled = self._kept.get(grammar.text)
            if compiled is not None:
                self._kept.move_to_end(grammar.text)
            tokenizer = self._llguidance_tokenizer
        if compiled is None:
            compiled = self._compiled(grammar, tokenizer)
            with self._lock:
                self._kept[grammar.text] = compiled
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        gate = None if thoughts is None else ThoughtGate(self._tokenizer, tokenizer, self._end_ids, thoughts == "open")
        return GrammarConstraint(compiled.matcher.deep_copy(), compiled.first, self._executor, grammar.param, gate)

    def is_control(self, tag: str) -> bool:
        """Whether `tag` is one token that text cannot spell."""
        token = self._tokenizer.id_of(tag)
        with self._lock:
            return token is not None and self._llguidance_tokenizer.is_special_token(token)

    @cached_property
    def _llguidance_tokenizer(self) -> llguidance.LLTokenizer:
        """Half a second for a vocabulary of 49k, so it is made when it is first needed."""
        return llguidance.LLTokenizer(
            self._tokenizer.definition(), n_vocab=self._vocab_size, eos_token=sorted(self._end_ids)
        )

    def _compiled(self, grammar: Grammar, tokenizer: llguidance.LLTokenizer) -> _Compiled:
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(tokenizer, grammar.text, log_level=0, limits=limits)
        first = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            _log.info("a grammar from %s was refused: %s", grammar.param, matcher.get_error())
            raise RequestError(_refusal(grammar, matcher.get_error()), param=grammar.param, code="bad_grammar")
        if not any(first):
            message = f"{grammar.param} allows no reply at all"
            raise RequestError(message, param=grammar.param, code="bad_grammar")
        return _Compiled(matcher, first)


def _refusal(grammar: Grammar, error: str) -> str:
    """A sentence of ours: the library's may quote the grammar at length."""
    found = _UNKNOWN_KEYWORDS.search(error)
    if found:
        return (
            f"{grammar.param} uses {', '.join(_KEYWORD.findall(found[1])[:8])}, which cannot be enforced; leave it out"
        )
    return (
        f"{grammar.param} is malformed, too complex, or uses what cannot be enforced (such as look-around); simplify it"
    )

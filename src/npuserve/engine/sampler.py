"""From one row of logits to one token: bias, penalties, candidates, one draw. Pure NumPy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from npuserve.core import SamplingParams
from npuserve.engine.draws import uniform
from npuserve.engine.token_counts import TokenCounts
from npuserve.errors import DeviceError

MAX_CANDIDATES = 64
_BLOCK = 64
_LARGEST = float(np.finfo(np.float32).max)


class Sampler:
    """Chooses the tokens of one sequence whose first `num_prompt_tokens` tokens are its prompt."""

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._params = params
        self._num_prompt_tokens = num_prompt_tokens
        self._counts = TokenCounts(num_prompt_tokens)
        self._stop_ids = np.array(sorted(params.stop_token_ids), dtype=np.int64)
        self._bias_ids = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        self._biases = np.array([bias for _, bias in params.logit_bias], dtype=np.float64)
        self._has_penalty = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )

    def sample(self, logits: NDArray[np.float32], tokens: Sequence[int], allowed: bytes | None = None) -> int:
        """The token that follows `tokens` (prompt, then generated), given finite `logits` [vocab].

        Order: logit bias, repetition penalty, presence and frequency penalty (each result rounded to a finite float32),
        only tokens whose bit in `allowed` is set (see Constraint), ban of stop tokens before `min_tokens` unless
        nothing else is allowed; temperature 0 takes the highest logit. Otherwise the `top_k` highest, temperature,
        softmax, min_p, top_p, and the draw of (seed, len(tokens)). Equal logits rank by token id, lowest first.
        `logits` is left as it was. Raises DeviceError when the logits are not finite or no token is left.
        """
        # The first NaN counts as the highest.
        highest = int(logits.argmax())
        if not (np.isfinite(logits[highest]) and np.isfinite(logits.min())):
            raise DeviceError(f"the device gave logits that are not finite at position {len(tokens)}")
        with np.errstate(over="ignore"):
            adjusted = self._adjust(logits, tokens, allowed)
            greedy = self._params.temperature == 0.0
            if greedy and adjusted is logits:
                return highest
            ids = adjusted.argmax(axis=0, keepdims=True) if greedy else top_ids(adjusted, self._params.top_k)
            if not (len(ids) and np.isfinite(adjusted[ids[0]])):
                raise DeviceError(f"bias, penalties and min_tokens leave no token to choose at position {len(tokens)}")
            return int(ids[0 if greedy else self._draw(adjusted[ids], len(tokens))])

    def _adjust(self, logits: NDArray[np.float32], tokens: Sequence[int], allowed: bytes | None) -> NDArray[np.float32]:
        """Logits after bias, penalties and bans: a copy when anything changes."""
        params = self._params
        bans = len(tokens) - self._num_prompt_tokens < params.min_tokens and len(self._stop_ids) > 0
        if not (bans or self._has_penalty or len(self._bias_ids) or allowed is not None):
            return logits
        adjusted = logits.copy()
        adjusted[self._bias_ids] += self._biases
        if self._has_penalty:
            self._penalize(adjusted, tokens)
        if allowed is not None:
            bits = np.unpackbits(np.frombuffer(allowed, np.uint8), count=len(adjusted), bitorder="little")
            np.copyto(adjusted, -np.inf, where=bits == 0)
        if bans:
            self._ban_stops(adjusted, constrained=allowed is not None)
        return adjusted

    def _ban_stops(self, adjusted: NDArray[np.float32], *, constrained: bool) -> None:
        """Take the stop tokens away, but not where a constraint leaves nothing else: what is complete must end."""
        # Clients may name stop tokens that the model does not have.
        stop_ids = self._stop_ids[self._stop_ids < len(adjusted)]
        kept = adjusted[stop_ids]
        adjusted[stop_ids] = -np.inf
        if constrained and not np.isfinite(adjusted.max()):
            adjusted[stop_ids] = kept

    def _penalize(self, adjusted: NDArray[np.float32], tokens: Sequence[int]) -> None:
        """Apply CTRL's repetition penalty (arXiv 1909.05858) and OpenAI's two penalties to the tokens seen."""
        params, counts = self._params, self._counts
        counts.catch_up(tokens)
        seen = adjusted[counts.ids].astype(np.float64)
        seen = np.where(seen > 0.0, seen / params.repetition_penalty, seen * params.repetition_penalty)
        seen -= params.presence_penalty * (counts.generated > 0.0) + params.frequency_penalty * counts.generated
        adjusted[counts.ids] = np.clip(seen, -_LARGEST, _LARGEST)

    def _draw(self, logits: NDArray[np.float32], position: int) -> int:
        """Index of the candidate drawn from `logits` [n], which fall from the highest on."""
        params = self._params
        scaled = logits.astype(np.float64)
        weights = np.exp((scaled - scaled[0]) / params.temperature)
        if params.min_p > 0.0:
            # The first weight is 1 and the highest, so a weight is already relative to the most likely token.
            weights = weights[weights >= params.min_p]
        sums = np.cumsum(weights)
        if params.top_p < 1.0:
            sums = sums[: 1 + np.searchsorted(sums[:-1], params.top_p * sums[-1], side="left")]
        return min(int(np.searchsorted(sums, uniform(params.seed, position) * sums[-1], side="right")), len(sums) - 1)


def top_ids(logits: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
    """Ids of the `top_k` highest of `logits` [vocab] (64 at most), highest first, the lower id first among equals.

    Tokens of logit -inf are left out. Exact: `top_k` disjoint blocks have a maximum of at least the bound, so the
    top_k highest logits are all at or above it, and few others are.
    """
    count = min(top_k, MAX_CANDIDATES, len(logits))
    num_blocks = len(logits) // _BLOCK
    maxima = logits
    if num_blocks >= count:
        # Blocks are columns of a [64, num_blocks] view: a maximum over rows runs along memory.
        maxima = logits[: num_blocks * _BLOCK].reshape(_BLOCK, num_blocks).max(axis=0)
    bound = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    # Fewer than `top_k` are possible at all: the others would only be sorted in vain.
    ids = np.flatnonzero(logits > bound) if bound == -np.inf else np.flatnonzero(logits >= bound)
    order = np.argsort(-logits[ids], kind="stable")
    return ids[order[:count]]

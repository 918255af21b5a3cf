"""Which tokens a sequence has seen and how often it generated each, grown as the sequence grows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Distinct tokens of one sequence as arrays; a token costs constant time, once.

    The first `num_prompt_tokens` tokens are seen but not generated.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_counted = 0
        self._places: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        self._generated: NDArray[np.float64] = np.zeros(64, dtype=np.float64)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct tokens seen, [n], in order of their first appearance."""
        return self._ids[: len(self._places)]

    @property
    def generated(self) -> NDArray[np.float64]:
        """How often each of `ids` was generated, [n]; 0 for those of the prompt only."""
        return self._generated[: len(self._places)]

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Count the tokens that `tokens` gained since the last call; it is always the same, growing sequence."""
        for index in range(self._num_counted, len(tokens)):
            token = tokens[index]
            place = self._places.get(token)
            if place is None:
                place = self._add(token)
            if index >= self._num_prompt_tokens:
                self._generated[place] += 1.0
        self._num_counted = len(tokens)

    def _add(self, token: int) -> int:
        place = len(self._places)
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._generated = np.concatenate([self._generated, np.zeros_like(self._generated)])
        self._places[token] = place
        self._ids[place] = token
        return place

"""An orthogonal change of basis of the hidden state, folded into the weights around it.

A few channels of a trained model's hidden state are far larger than the others and would set the int8 scale of
their whole block. In the new basis each group of channels is mixed by a Hadamard matrix, so a large one is spread
over its group. RMS norms see the same length; their weights are folded into the matrices behind them, because they
do not commute with the change. The device computes the same function and does no more work. The idea is QuaRot's
(Ashkboos et al. 2024).
"""

import numpy as np
from numpy.typing import NDArray

SEED = 0
ELEMENTS_AT_ONCE = 1 << 17
"""What is mixed at once, with its float64 scratch, stays in a core's cache."""
MAX_WIDTH = 64
"""Wider groups gain nothing in accuracy, and their products are large enough for BLAS to wake its threads."""


class Rotation:
    """x' = (x * signs) H / sqrt(width), in groups of `width`: the largest power of two, at most MAX_WIDTH, that
    divides the size."""

    def __init__(self, size: int) -> None:
        self.width = min(size & -size, MAX_WIDTH)
        self._signs = np.random.default_rng(SEED).integers(0, 2, size) * 2.0 - 1.0
        self._mix = _hadamard(self.width)

    def rows(self, values: NDArray[np.float32], norm: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The last axis of [rows, size] in the new basis, after the weight of a norm is multiplied in.

        Sums are float64 and rounded once: of 16-bit numbers they are exact, so that they have the same bits whatever
        the order of summation, on every machine.
        """
        factors = self._signs if norm is None else self._signs * norm
        rotated = np.empty(values.shape, np.float32)
        step = max(1, ELEMENTS_AT_ONCE // values.shape[1])
        for start in range(0, len(values), step):
            signed = values[start : start + step] * factors
            mixed = signed.reshape(len(signed), -1, self.width) @ self._mix
            rotated[start : start + step] = (mixed * self.width**-0.5).reshape(signed.shape)
        return rotated

    def columns(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """The first axis in the new basis."""
        rotated = np.empty(weights.shape, np.float32)
        step = max(1, ELEMENTS_AT_ONCE // len(weights))
        for start in range(0, weights.shape[1], step):
            rotated[:, start : start + step] = self.rows(np.ascontiguousarray(weights[:, start : start + step].T)).T
        return rotated

    def vector(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """One hidden state in the new basis."""
        rotated: NDArray[np.float32] = self.rows(values[None])[0]
        return rotated


def _hadamard(width: int) -> NDArray[np.float64]:
    """Sylvester's matrix of ones and minus ones, [width, width]."""
    matrix = np.ones((1, 1))
    while len(matrix) < width:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix

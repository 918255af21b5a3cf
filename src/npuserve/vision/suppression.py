"""One box for each object: non-maximum suppression class by class."""

import numpy as np
from numpy.typing import NDArray

# More candidates than this are noise: only the best are looked at, and no more objects are told.
_MAX_CANDIDATES = 3000
MAX_OBJECTS = 300


def suppress(
    boxes: NDArray[np.float64], scores: NDArray[np.float64], classes: NDArray[np.int64], most_overlap: float
) -> NDArray[np.int64]:
    """Indices of the boxes [n, 4] that no better one of their class covers by more than `most_overlap`, best first."""
    order = np.argsort(-scores, kind="stable")[:_MAX_CANDIDATES]
    kept: list[int] = []
    while order.size and len(kept) < MAX_OBJECTS:
        best, rest = int(order[0]), order[1:]
        kept.append(best)
        covered = (overlap(boxes[best], boxes[rest]) > most_overlap) & (classes[rest] == classes[best])
        order = rest[~covered]
    return np.array(kept, dtype=np.int64)


def overlap(box: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of `box` [4] with each of `boxes` [n, 4]; 0 where the union is empty."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    shared = np.clip(sides, 0.0, None).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))

"""Log probabilities of tokens, read off a row of logits as the device gave it."""

import numpy as np
from numpy.typing import NDArray

from npuserve.core import TokenLogprob
from npuserve.engine.sampler import top_ids


def token_logprob(logits: NDArray[np.float32], token: int, num_top: int) -> TokenLogprob:
    """The entry of `token` and of the `num_top` (64 at most) most likely ones, by the log softmax of finite `logits`
    [vocab]; equal logits rank by token id.
    """
    highest = logits.max()
    # Summed in double precision: a vocabulary of small terms would lose digits in single.
    total = float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))
    top = top_ids(logits, num_top) if num_top else ()
    return TokenLogprob(
        float(logits[token]) - total, tuple((int(other), float(logits[other]) - total) for other in top)
    )

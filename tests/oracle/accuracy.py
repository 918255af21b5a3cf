"""How far two sets of logits are from each other as predictions of a text, and the text."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import Checkpoint

Tokens = NDArray[np.int64]
LogitsOf = Callable[[int, int], NDArray[np.floating]]
"""Logits of positions start..stop-1, so that a vocabulary's worth of rows need not be held at once."""
POSITIONS_AT_ONCE = 256
LONG_PARAGRAPH = 200


def english_tokens(checkpoint: Checkpoint, count: int) -> Tokens:
    """The first tokens of the Python language reference's prose, which every Python carries."""
    paragraphs = [paragraph for _, topic in sorted(topics.items()) for paragraph in topic.split("\n\n")]
    prose = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if _is_prose(paragraph))
    return np.array(checkpoint.tokenizer().encode(prose[: 20 * count]).ids[:count])


def _is_prose(paragraph: str) -> bool:
    """Neither code nor grammar nor a table."""
    is_code = "::=" in paragraph or re.search(r"^ {3}|[-=*]{4}", paragraph, re.MULTILINE)
    return len(paragraph) > LONG_PARAGRAPH and not is_code


@dataclass(frozen=True, slots=True)
class Agreement:
    """Next-token predictions against a reference's: KL(reference || candidate) in nats, agreement of the likeliest
    token, and both perplexities of the text itself."""

    num_positions: int
    mean_kl: float
    worst_kl: float
    top1: float
    perplexity: float
    reference_perplexity: float

    @property
    def perplexity_change(self) -> float:
        return self.perplexity / self.reference_perplexity - 1


def agreement(candidate: LogitsOf, reference: LogitsOf, tokens: Tokens) -> Agreement:
    """Over all positions of a text; perplexities leave out the last one, whose next token is not known."""
    divergences, same, losses, reference_losses = [], [], [], []
    for start in range(0, len(tokens), POSITIONS_AT_ONCE):
        stop = min(start + POSITIONS_AT_ONCE, len(tokens))
        mine, theirs = _log_softmax(candidate(start, stop)), _log_softmax(reference(start, stop))
        divergences.append((np.exp(theirs) * (theirs - mine)).sum(axis=1))
        same.append(mine.argmax(axis=1) == theirs.argmax(axis=1))
        following = tokens[start + 1 : stop + 1]
        places = np.arange(len(following))
        losses.append(-mine[places, following])
        reference_losses.append(-theirs[places, following])
    kl = np.concatenate(divergences)
    return Agreement(
        num_positions=len(tokens),
        mean_kl=float(kl.mean()),
        worst_kl=float(kl.max()),
        top1=float(np.concatenate(same).mean()),
        perplexity=float(np.exp(np.concatenate(losses).mean())),
        reference_perplexity=float(np.exp(np.concatenate(reference_losses).mean())),
    )


def rows_of(logits: NDArray[np.floating]) -> LogitsOf:
    """Logits that are all there."""
    return lambda start, stop: logits[start:stop]


def _log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted

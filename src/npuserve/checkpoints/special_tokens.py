"""Which tokens begin a text, end a turn and fill a batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Control tokens that end a turn in the chat formats of the families served here, whatever the metadata says of them.
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The checkpoint's special tokens as strings and ids; None where it names none.

    `stop_ids` holds every id that ends a reply: those of the configuration and the known end-of-turn tokens.
    """

    bos: str | None = None
    bos_id: int | None = None
    eos: str | None = None
    eos_id: int | None = None
    pad: str | None = None
    pad_id: int | None = None
    stop_ids: frozenset[int] = frozenset()


def stop_ids(named: Iterable[int], token_id: Callable[[str], int | None]) -> frozenset[int]:
    """`named` with the ids of the known end-of-turn tokens; `token_id` finds a control token, None for no such one."""
    found = (token_id(token) for token in _END_OF_TURN)
    return frozenset(named) | {token for token in found if token is not None}

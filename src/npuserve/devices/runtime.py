"""The Runtime seam: a prompt in, pieces of a reply out, for accelerators that keep their own loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from npuserve.core import SamplingParams


@dataclass(frozen=True, slots=True)
class RuntimeCapabilities:
    """What a runtime can do, as data. `honours_sampling` is about the sampling values of single requests."""

    name: str
    context_length: int
    honours_sampling: bool


class RuntimePiece(NamedTuple):
    """What one generated token adds to the reply: bytes that may end inside a character, and the token's id."""

    text: bytes
    token_id: int


class RuntimeUsage(NamedTuple):
    """What a run cost by the runtime's own account; None for what it does not tell."""

    num_prompt_tokens: int | None = None


class Runtime(Protocol):
    """One accelerator with one model loaded, one generation at a time."""

    @property
    def capabilities(self) -> RuntimeCapabilities: ...

    def generate(
        self, prompt: bytes | tuple[int, ...], sampling: SamplingParams, on_piece: Callable[[RuntimePiece], None]
    ) -> RuntimeUsage:
        """Run to the end of the turn, to `max_tokens` or to an abort, and block until then.

        `prompt` is UTF-8 text or token ids. `on_piece` is called from any one thread at a time, and not after the
        return. Raises DeviceError when the run failed.
        """

    def abort(self) -> None:
        """Make `generate` return soon; from any thread, quick, and without effect when nothing runs."""

    def close(self) -> None:
        """Unload the model; safe to call twice, not during `generate`."""

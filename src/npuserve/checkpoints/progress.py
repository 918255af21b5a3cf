"""What a long download shows on standard error."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


class Progress:
    """Bars and notes on standard error; bars only on a terminal, nothing at all when not `shown`."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    @property
    def has_bars(self) -> bool:
        return self.shown and sys.stderr.isatty()

    def note(self, text: str) -> None:
        if self.shown:
            print(text, file=sys.stderr, flush=True)

    def bar(self, label: str, size_bytes: int) -> "tqdm[None]":
        from tqdm import tqdm

        return tqdm(
            desc=label,
            total=size_bytes,
            unit="B",
            unit_scale=True,
            disable=not self.has_bars,
            file=sys.stderr,
            leave=True,
        )

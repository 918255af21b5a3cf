"""From token ids to the text that a client sees."""

from collections.abc import Sequence

from npuserve.text.detokenizer import Detokenizer
from npuserve.text.stop_strings import StopStrings


class Pipeline:
    """The text of one choice: token bytes, UTF-8 completion, stop strings, with one flush order at the end.

    The deltas joined do not depend on how the ids were cut into pieces. `num_tokens` counts the ids up to and with
    the one that completed a stop string. Stop strings are looked for from token `min_tokens` on.
    """

    def __init__(
        self, detokenizer: Detokenizer, stop_strings: StopStrings | None = None, *, min_tokens: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._min_tokens = min_tokens
        self.num_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; ids after that are ignored."""
        return self._stop_strings is not None and self._stop_strings.found is not None

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that may be sent now."""
        if self._stop_strings is None:
            self.num_tokens += len(token_ids)
            return self._detokenizer.push(token_ids)
        parts: list[str] = []
        for token_id in token_ids:
            if self.stopped:
                break
            self.num_tokens += 1
            text = self._detokenizer.push((token_id,))
            parts.append(text if self.num_tokens < self._min_tokens else self._stop_strings.push(text))
        return "".join(parts)

    def finish(self) -> str:
        """The rest: an unfinished character first, then what was held as a possible stop string."""
        if self.stopped:
            return ""
        rest = self._detokenizer.finish()
        if self._stop_strings is None:
            return rest
        rest = self._stop_strings.push(rest)
        return rest if self.stopped else rest + self._stop_strings.finish()

"""From token ids to what a client sees."""

from bisect import bisect_left
from collections.abc import Sequence

from npuserve.core import TokenLogprob
from npuserve.text.detokenizer import Detokenizer
from npuserve.text.piece import NOTHING, Piece, TokenEntry
from npuserve.text.reasoning import ReasoningSplitter
from npuserve.text.stop_strings import StopStrings
from npuserve.text.token_entries import TokenEntries
from npuserve.text.tools.parser import ToolParser


class Pipeline:
    """One choice: token bytes, UTF-8 completion, stop strings, reasoning, calls, with one flush order at the end.

    The pieces joined do not depend on how the ids were cut. `num_tokens` counts the ids up to and with the one that
    completed a stop string or the only call. Stop strings are looked for from token `min_tokens` on.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop_strings: StopStrings | None = None,
        *,
        min_tokens: int = 0,
        reasoning: ReasoningSplitter | None = None,
        tools: ToolParser | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._min_tokens = min_tokens
        self._reasoning = reasoning
        self._tools = tools
        self._is_plain = stop_strings is None and reasoning is None and tools is None
        self._num_characters = 0
        self._num_released = 0
        # Where each token's text ends, to tell later which of them closed the reasoning.
        self._ends: list[int] = []
        self._entries = TokenEntries()
        self.num_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string or the only call was found; ids after that are ignored."""
        found = self._stop_strings is not None and self._stop_strings.found is not None
        return found or (self._tools is not None and self._tools.full)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return None if self._stop_strings is None else self._stop_strings.found

    @property
    def has_calls(self) -> bool:
        """Whether there are calls and all of them are complete."""
        return self._tools is not None and self._tools.num_calls > 0 and not self._tools.inside

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens up to and with the one that closed the reasoning; all where it was cut, none without any."""
        reasoning = self._reasoning
        if reasoning is None or not reasoning.opened:
            return 0
        closed_at = reasoning.closed_at
        return self.num_tokens if closed_at is None else 1 + bisect_left(self._ends, closed_at)

    def push(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> Piece:
        """What may be sent now; `logprobs` are those of `token_ids` where they were asked for."""
        if self._is_plain and not logprobs:
            self.num_tokens += len(token_ids)
            return Piece(self._detokenizer.push(token_ids))
        piece = NOTHING
        for index, token_id in enumerate(token_ids):
            if self.stopped:
                break
            piece = piece.joined(self._one(token_id, logprobs[index] if logprobs else None))
        return piece

    def finish(self, last: tuple[int, TokenLogprob] | None = None) -> Piece:
        """The rest, stage by stage: what each one held goes through those after it.

        `last` is the token that ended the reply, when it is to have an entry.
        """
        shown = ""
        if not self.stopped:
            shown = self._through_stops(self._detokenizer.finish())
            if self._stop_strings is not None and not self.stopped:
                shown += self._stop_strings.finish()
            self._num_released += len(shown)
        piece = self._split(shown)
        if self._reasoning is not None:
            thought, content = self._reasoning.finish()
            piece = piece.joined(Piece(reasoning=thought)).joined(self._parse(content))
        if self._tools is not None:
            piece = piece.joined(Piece(self._tools.finish()))
        entries = self._entries.finish(self._num_released if self.stopped else None)
        if last is not None and not self.stopped:
            entries += (TokenEntry(*last, self._num_characters),)
        return piece.joined(Piece(entries=entries))

    def _one(self, token_id: int, logprob: TokenLogprob | None) -> Piece:
        self.num_tokens += 1
        start = self._num_characters
        text = self._detokenizer.push((token_id,))
        self._num_characters += len(text)
        if self._reasoning is not None:
            self._ends.append(self._num_characters)
        if logprob is not None:
            end = self._num_characters + self._detokenizer.is_inside_character
            self._entries.add(TokenEntry(token_id, logprob, start), end)
        shown = text if self.num_tokens < self._min_tokens else self._through_stops(text)
        self._num_released += len(shown)
        piece = self._split(shown)
        if logprob is None:
            return piece
        # Entries go with visible news; before there is any they wait.
        has_news = piece != NOTHING
        return piece._replace(entries=self._entries.take(self._num_released)) if has_news else piece

    def _through_stops(self, text: str) -> str:
        return text if self._stop_strings is None else self._stop_strings.push(text)

    def _split(self, text: str) -> Piece:
        if not text:
            return NOTHING
        if self._reasoning is None:
            return self._parse(text)
        thought, content = self._reasoning.push(text)
        return self._parse(content)._replace(reasoning=thought)

    def _parse(self, text: str) -> Piece:
        if self._tools is None or not text:
            return Piece(text)
        shown, calls = self._tools.push(text)
        return Piece(shown, calls=tuple(calls))

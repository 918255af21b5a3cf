"""One request on a runtime that keeps its own loop: pieces in, events out."""

from collections.abc import Sequence
from typing import Protocol

from npuserve.core import Event, FinishReason, Request, Timings
from npuserve.devices.runtime import RuntimePiece
from npuserve.text.stop_strings import StopStrings
from npuserve.text.text_ids import text_id


class PieceBytes(Protocol):
    """Token id -> the bytes that it stands for."""

    def __getitem__(self, token_id: int, /) -> bytes: ...


class RuntimeRun:
    """The reply as it grows; knows no thread and no clock.

    Each piece counts as one token of the reply. It ends at a stop token, at the text of one of `end_markers` (real
    runtimes spell control tokens out), or at max_tokens. A piece that may hold the beginning of a marker is held whole.
    """

    def __init__(self, request: Request, end_markers: Sequence[str], token_bytes: PieceBytes) -> None:
        self.request = request
        self.started_s: float | None = None
        self.first_piece_s: float | None = None
        self.num_generated = 0
        self.finish: FinishReason | None = None
        self.finished_s: float | None = None
        self._token_bytes = token_bytes
        # Markers are ASCII or whole UTF-8 characters; matching is done on bytes, each as one Latin-1 character.
        self._stops = StopStrings([marker.encode().decode("latin-1") for marker in end_markers])
        self._held_ids: list[int] = []
        self._held = b""
        self._num_unmatched_bytes = 0

    @property
    def id(self) -> str:
        return self.request.id

    def push(self, piece: RuntimePiece, now_s: float) -> Event | None:
        """What `piece` makes visible; the event may be the last."""
        if self.first_piece_s is None:
            self.first_piece_s = now_s
        sampling = self.request.sampling
        if piece.token_id in sampling.stop_token_ids:
            return self.end(FinishReason.STOP, now_s, stop_token_id=piece.token_id)
        self.num_generated += 1
        text = self._stops.push(piece.text.decode("latin-1")).encode("latin-1")
        if self._stops.found is not None:
            # The marker is the stop token; text before it in the same piece is part of the reply.
            return self.end(FinishReason.STOP, now_s, text=text, stop_token_id=piece.token_id)
        self._held_ids.append(piece.token_id)
        if self.num_generated >= sampling.max_tokens:
            return self.end(FinishReason.LENGTH, now_s, text=text)
        self._held += text
        self._num_unmatched_bytes += len(piece.text) - len(text)
        if self._num_unmatched_bytes:
            return None
        return Event(self.id, self._ids(b""))

    def end(
        self,
        finish: FinishReason,
        now_s: float,
        *,
        text: bytes = b"",
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> Event:
        """The last event, with what was held."""
        self.finish, self.finished_s = finish, now_s
        if self._stops.found is None and finish in (FinishReason.STOP, FinishReason.LENGTH):
            text += self._stops.finish().encode("latin-1")
        return Event(self.id, self._ids(text), finish, stop_token_id, error, timings=self.timings(now_s))

    def timings(self, now_s: float) -> Timings:
        """What it has cost until `now_s`, in which phase."""
        started_s = now_s if self.started_s is None else self.started_s
        first_s = now_s if self.first_piece_s is None else self.first_piece_s
        return Timings(started_s - self.request.arrival_s, first_s - started_s, now_s - first_s)

    def _ids(self, text: bytes) -> tuple[int, ...]:
        """One id for each held piece; the last carries the text, as the token's own id when that says the same."""
        text = self._held + text
        tokens, self._held_ids, self._held = self._held_ids, [], b""
        if not tokens:
            return ()
        last = tokens[-1]
        is_token = last >= 0 and self._token_bytes[last] == text
        empty = [text_id(b"", token_id) for token_id in tokens[:-1]]
        return (*empty, last if is_token else text_id(text, last))

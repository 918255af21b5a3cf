"""The trivial twin of an accelerator: no weights, deterministic logits, strict about the rules of rows.

Everything above the Device seam is proven against it. The logits of a row depend on the tokens of its slot up to
that row and on nothing else, so a scheduler that mixes up slots, positions or companions is caught by its replies.
"""

import time
from collections.abc import Callable, Container, Sequence

import numpy as np
from numpy.typing import NDArray

from npuserve.core import PAGE_TOKENS, Row
from npuserve.devices.base import Capabilities, StepResult, nothing
from npuserve.errors import DeviceError

_MASK64 = (1 << 64) - 1
# Knuth's multiplier for 64-bit linear congruential generators: the rolling hash of a slot's tokens.
_HASH_MULTIPLIER = 6364136223846793005
# Odd multipliers that spread one hash over the tokens of a row; rising heights make later ones win collisions.
_SPREAD = np.array([(2 * i + 1) * 0x9E3779B97F4A7C15 & _MASK64 for i in range(6)], dtype=np.uint64)
_PEAKS = np.array([17.0, 17.5, 18.0, 18.5, 19.0, 20.0], dtype=np.float32)
# A saved page: what stood before it, which page it is, how many tokens it has, the tokens.
_PAGE = np.dtype([("before", "<u8"), ("page", "<u4"), ("count", "<u4"), ("tokens", "<u4", PAGE_TOKENS)])
_SCRIPT_PEAK = np.array([50.0], dtype=np.float32)


class NullDevice:
    """A Device whose next token is a hash of the slot's history, or what `script` says it is.

    `script` maps the tokens of a slot, oldest first, to the token that follows them. Steps are counted from 0;
    one whose number is in `fail_at_step` raises `failure` and writes nothing. `step_delay_s` is slept in every
    step. Rewriting a position forgets those above it, since they were computed from what is gone. A page holds its
    tokens and the hash of those before it, and is refused by a slot that holds other ones there.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 49152,
        num_slots: int = 8,
        max_rows: int = 64,
        context_length: int = 2048,
        recurrent: bool = False,
        script: Callable[[tuple[int, ...]], int] | None = None,
        fail_at_step: Container[int] = (),
        failure: type[DeviceError] = DeviceError,
        step_delay_s: float = 0.0,
    ) -> None:
        self._capabilities = Capabilities(
            name="null",
            num_slots=num_slots,
            max_rows=max_rows,
            context_length=context_length,
            vocab_size=vocab_size,
            recurrent=recurrent,
            page_bytes=_PAGE.itemsize,
            page_format="null1",
        )
        self._script = script
        self._fail_at_step = fail_at_step
        self._failure = failure
        self._step_delay_s = step_delay_s
        self._num_steps = 0
        self._closed = False
        # Per slot: tokens written so far, and the hash of the tokens up to and including each.
        self._tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self._hashes: list[list[int]] = [[] for _ in range(num_slots)]
        # What a row looks like before its likely tokens are raised: no two tokens tie.
        self._floor = np.linspace(0.0, -1.0, vocab_size, dtype=np.float32)
        self._logits = np.tile(self._floor, (max_rows, 1))
        self._raised = np.zeros((0, 1), dtype=np.int64)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def num_steps(self) -> int:
        """Steps asked for so far, failed ones included."""
        return self._num_steps

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        """Write `rows` and return the logits of those that want them; see Device.step."""
        started_s = time.perf_counter()
        if self._closed:
            raise DeviceError("the null device is closed; open a new one")
        number = self._num_steps
        self._num_steps += 1
        self._check(rows)
        meanwhile()
        if self._step_delay_s:
            time.sleep(self._step_delay_s)
        if number in self._fail_at_step:
            raise self._failure(f"the null device was told to fail at step {number}")
        wanted = self._write(rows)
        logits = self._fill(wanted)
        return StepResult(logits, device_s=time.perf_counter() - started_s)

    def save(self, slot: int, page: int) -> NDArray[np.uint8]:
        """See `Device.save`."""
        start = self._check_page(slot, page)
        num_written = len(self._tokens[slot])
        if self._capabilities.recurrent:
            if page != (num_written - 1) // PAGE_TOKENS:
                raise ValueError(f"a recurrent state at {num_written} cannot be saved with page {page}")
        elif num_written < start + PAGE_TOKENS:
            raise ValueError(f"page {page} of slot {slot} is not complete: {num_written} positions are written")
        tokens = self._tokens[slot][start : start + PAGE_TOKENS]
        record = np.zeros(1, _PAGE)
        record["before"], record["page"], record["count"] = self._hash_before(slot, start), page, len(tokens)
        record["tokens"][0, : len(tokens)] = tokens
        return record.view(np.uint8)

    def restore(self, slot: int, page: int, data: Sequence[NDArray[np.uint8]]) -> None:
        """See `Device.restore`. ValueError also for a page that does not follow what the slot holds."""
        for index, saved in enumerate(data, page):
            if saved.shape != (_PAGE.itemsize,) or saved.dtype != np.uint8:
                raise ValueError(f"a saved page is uint8 [{_PAGE.itemsize}], not {saved.dtype} {list(saved.shape)}")
            record = saved.view(_PAGE)[0]
            start = self._check_page(slot, index)
            if start > len(self._tokens[slot]):
                raise ValueError(
                    f"page {index} of slot {slot} follows a gap; only {len(self._tokens[slot])} are written"
                )
            if record["page"] != index or record["before"] != self._hash_before(slot, start):
                raise ValueError(f"this is not page {index} of the context in slot {slot}")
            tokens = record["tokens"][: record["count"]].tolist()
            self._write([Row(slot, at, token, False) for at, token in enumerate(tokens, start)])

    def close(self) -> None:
        self._closed = True

    def _check_page(self, slot: int, page: int) -> int:
        """The first position of `page`; DeviceError and ValueError when it cannot be moved."""
        if self._closed:
            raise DeviceError("the null device is closed; open a new one")
        if not 0 <= slot < self._capabilities.num_slots:
            raise ValueError(f"slot {slot} is not one of 0..{self._capabilities.num_slots - 1}")
        if not 0 <= page * PAGE_TOKENS < self._capabilities.context_length:
            raise ValueError(f"page {page} is outside the context of {self._capabilities.context_length}")
        return page * PAGE_TOKENS

    def _hash_before(self, slot: int, position: int) -> int:
        return self._hashes[slot][position - 1] if position else 1

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise ValueError for rows that break a rule, before any of them is written."""
        can = self._capabilities
        if not 1 <= len(rows) <= can.max_rows:
            raise ValueError(f"a step takes 1 to {can.max_rows} rows, not {len(rows)}")
        done: set[int] = set()
        last_slot, last_position = -1, -1
        for slot, position, token, _ in rows:
            if not 0 <= slot < can.num_slots:
                raise ValueError(f"slot {slot} is not one of 0..{can.num_slots - 1}")
            if not 0 <= position < can.context_length:
                raise ValueError(f"position {position} is outside the context of {can.context_length}")
            if not 0 <= token < can.vocab_size:
                raise ValueError(f"token {token} is outside the vocabulary of {can.vocab_size}")
            if slot == last_slot:
                if position != last_position + 1:
                    raise ValueError(
                        f"slot {slot} goes from position {last_position} to {position}; rows are consecutive"
                    )
            else:
                if slot in done:
                    raise ValueError(f"the rows of slot {slot} do not stand together")
                done.add(slot)
                self._check_start(slot, position)
            last_slot, last_position = slot, position

    def _check_start(self, slot: int, position: int) -> None:
        num_written = len(self._tokens[slot])
        if position > num_written:
            raise ValueError(f"position {position} of slot {slot} follows a gap; only {num_written} are written")
        if self._capabilities.recurrent and position not in (0, num_written):
            raise ValueError(f"a recurrent state at {num_written} cannot go on at position {position}")

    def _write(self, rows: Sequence[Row]) -> list[tuple[int, int]]:
        """Append the rows to their slots and return (slot, position) of those that want logits."""
        wanted = []
        for slot, position, token, want_logits in rows:
            tokens, hashes = self._tokens[slot], self._hashes[slot]
            if position < len(tokens):
                del tokens[position:], hashes[position:]
            before = hashes[-1] if hashes else 1
            tokens.append(token)
            hashes.append((before * _HASH_MULTIPLIER + 2 * token + 1) & _MASK64)
            if want_logits:
                wanted.append((slot, position))
        return wanted

    def _fill(self, wanted: list[tuple[int, int]]) -> NDArray[np.float32]:
        """Lower what the last step raised and raise this step's likely tokens; the rest stays as it is."""
        vocab_size = self._capabilities.vocab_size
        flat = self._logits.reshape(-1)
        flat[self._raised] = self._floor[self._raised % vocab_size]
        if self._script is None:
            hashes = np.array([self._hashes[slot][position] for slot, position in wanted], dtype=np.uint64)
            likely = ((hashes[:, None] * _SPREAD) >> np.uint64(33)) % np.uint64(vocab_size)
            tokens, peaks = likely.astype(np.int64), _PEAKS
        else:
            script = self._script
            scripted = [script(tuple(self._tokens[slot][: position + 1])) for slot, position in wanted]
            tokens, peaks = np.array(scripted, dtype=np.int64).reshape(-1, 1), _SCRIPT_PEAK
        self._raised = tokens + np.arange(len(wanted), dtype=np.int64)[:, None] * vocab_size
        flat[self._raised] = peaks
        return self._logits[: len(wanted)]

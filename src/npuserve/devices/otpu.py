"""One openTPU card, real or simulated: steps become programs and step tables, runs become logits."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from npuserve.core import PAGE_TOKENS, Row
from npuserve.devices.base import Capabilities, StepResult, nothing
from npuserve.devices.otpu_pages import OtpuPages
from npuserve.drivers.base import LazyLink, Link
from npuserve.drivers.registers import CARD_ID, Caps, Control, Extensions, Register, Status, extensions
from npuserve.errors import DeviceError, DeviceUnavailableError
from npuserve.isa.machine import MachineConfig
from npuserve.models.weight_formats import describe_formats
from npuserve.program.decoder import build
from npuserve.program.dram import BEAT, PAGE, DramLayout
from npuserve.program.geometry import ATTENTION_BLOCK, round_up
from npuserve.program.image import VERSION, Image
from npuserve.program.step_table import Segment, StepTable, segments_of
from npuserve.program.tmem import Shape
from npuserve.quant.formats import NVFP4

REQUIRED = Caps.GEN
WARM_UP_STEPS = 2
"""The simulator packs the weights during the second run."""
MOST_EXPECTED_BYTES = 1 << 30
"""Slots of large models may never all be used."""
STOPPED = Status.ERROR | Status.AXI_ERR | Status.WAIT_TO
_STOPPED = STOPPED.value


class OtpuDevice:
    """Serves one model image over any Link.

    Opening it runs nothing yet; see `warm_up`.
    """

    def __init__(self, link: Link, machine: MachineConfig, dram: DramLayout, image: Image, name: str) -> None:
        self._link, self._dram = link, dram
        caps = self._check_card()
        self._machine = replace(machine, dstep=machine.dstep and Caps.DSTEP in caps)
        facts = dram.geometry.facts
        self._pages = OtpuPages(link, dram)
        self._capabilities = Capabilities(
            name=name,
            num_slots=dram.num_slots,
            max_rows=dram.max_rows,
            context_length=dram.geometry.capacity,
            vocab_size=facts.vocab_size,
            recurrent=facts.has_state,
            page_bytes=self._pages.page_bytes,
            page_format=_page_format(dram, machine),
        )
        self._next_positions = [0] * dram.num_slots
        """Which position a recurrent state can go on at, beside 0."""
        self._table = StepTable(dram, image.embedding, image.layer_inputs)
        self._programs: dict[Shape, NDArray[np.uint32]] = {}
        self._loaded: Shape | None = None
        link.load_file(image.path, PAGE, image.image_bytes, 0)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        """See `Device.step`. At most one slot may have more than one row."""
        started = time.perf_counter()
        step = _Step(rows, self._capabilities)
        self._check_order(step)
        self._write_tables(step)
        self._load_program(step.shape)
        ready = time.perf_counter()
        for segment in step.segments:
            self._next_positions[segment.slot] = 0
        self._run(meanwhile)
        for segment in step.segments:
            self._next_positions[segment.slot] = segment.position + segment.num_rows
        done = time.perf_counter()
        logits = self._read_logits(step)
        return StepResult(logits, program_s=ready - started, device_s=done - ready)

    def save(self, slot: int, page: int) -> NDArray[np.uint8]:
        """See `Device.save`."""
        self._check_pages(slot, page, 1)
        end = self._next_positions[slot]
        if self._capabilities.recurrent and page != (end - 1) // PAGE_TOKENS:
            raise ValueError(f"a recurrent state at {end} cannot be saved with page {page}")
        return self._pages.save(slot, page, end)

    def restore(self, slot: int, page: int, data: Sequence[NDArray[np.uint8]]) -> None:
        """See `Device.restore`."""
        for saved in data:
            if saved.shape != (self._pages.page_bytes,):
                raise ValueError(f"a saved page has {self._pages.page_bytes} bytes, not {list(saved.shape)}")
        self._check_pages(slot, page, len(data))
        self._next_positions[slot] = self._pages.restore(slot, page, data)

    def close(self) -> None:
        self._link.close()

    def _check_pages(self, slot: int, page: int, num_pages: int) -> None:
        can = self._capabilities
        if not 0 <= slot < can.num_slots:
            raise ValueError(f"slot {slot} does not exist; there are {can.num_slots}")
        if num_pages < 1 or page < 0 or (page + num_pages) * PAGE_TOKENS > self._dram.geometry.positions:
            raise ValueError(f"pages {page} to {page + num_pages - 1} are outside the context of {can.context_length}")

    def _check_order(self, step: "_Step") -> None:
        """A state that has gone past a position cannot go back to it."""
        for segment in step.segments if self._capabilities.recurrent else ():
            if segment.position not in (0, expected := self._next_positions[segment.slot]):
                raise ValueError(f"a recurrent state at {expected} cannot go on at position {segment.position}")

    def warm_up(self) -> None:
        """Run the smallest step twice: a broken card or image shows now, and the first client does not wait.

        Where memory costs much at its first use, that of the slots is prepared from now on.
        """
        for _ in range(WARM_UP_STEPS):
            self.step([Row(0, 0, 0, True)])
        if isinstance(self._link, LazyLink):
            dram = self._dram
            self._link.expect(dram.slots, min(dram.num_slots * dram.slot_stride, MOST_EXPECTED_BYTES))

    def _check_card(self) -> Caps:
        """What the card can do, which is all that the model needs."""
        if (found := self._link.read_register(Register.ID)) != CARD_ID:
            raise DeviceUnavailableError(f"register ID reads {found:#x}, not {CARD_ID:#x}: this is no openTPU card")
        matrices = self._dram.matrices
        required = REQUIRED
        if any(matrix.format.is_four_bit for matrix in matrices):
            required |= Caps.W4
        if any(matrix.paired for matrix in matrices):
            required |= Caps.PAIR
        caps = Caps(self._link.read_register(Register.CAPS))
        if missing := required & ~caps:
            raise DeviceUnavailableError(
                f"the card's image lacks {missing.name}, which our programs need; load a newer"
                + (" or serve with --wformat int8" if missing & (Caps.W4 | Caps.PAIR) else "")
            )
        if any(matrix.format is NVFP4 for matrix in matrices):
            self._require_nvfp4()
        return caps

    def _require_nvfp4(self) -> None:
        if Extensions.NVFP4 not in extensions(self._link.read_register(Register.EXTENSIONS)):
            raise DeviceUnavailableError(
                "this card cannot multiply with nvfp4 weights, which are an extension of the simulator;"
                " serve with --wformat fp4, int4 or int8"
            )

    def _write_tables(self, step: "_Step") -> None:
        records = self._table.rows(step.tokens, step.positions, step.masks_from, step.shape, step.segments)
        self._link.write_dram(self._dram.rows, records)
        self._link.write_dram(self._dram.segments, self._table.segments(step.segments))
        inputs = self._table.layer_inputs(step.tokens)
        if inputs is not None:
            self._link.write_dram(self._dram.inputs, inputs)

    def _load_program(self, shape: Shape) -> None:
        if shape == self._loaded:
            return
        program = self._programs.get(shape)
        if program is None:
            program = self._programs[shape] = build(self._dram, shape, self._machine)
        link, address = self._link, self._dram.programs
        data = program.view(np.uint8).reshape(-1)
        padded = np.zeros(round_up(data.size, BEAT), np.uint8)
        padded[: data.size] = data
        link.write_dram(address, padded)
        link.write_register(Register.PROG_ADDR, address)
        link.write_register(Register.PROG_N, len(program))
        link.write_register(Register.CTRL, Control.LOAD)
        self._wait(Status.LOADING, set_when_done=False)
        self._loaded = shape

    def _run(self, meanwhile: Callable[[], None]) -> None:
        link = self._link
        link.write_register(Register.CTRL, Control.CLEAR)
        # Before the run, as the simulator's takes place inside the write that starts it.
        meanwhile()
        link.write_register(Register.CTRL, Control.RUN)
        try:
            status = self._wait(Status.HALTED, set_when_done=True)
        finally:
            link.write_register(Register.CTRL, Control(0))
        if status & _STOPPED:
            count, reasons = link.read_register(Register.ICOUNT), Status(status) & STOPPED
            raise DeviceError(f"the card stopped after {count} instructions with {reasons.name}")
        self._wait(Status.WR_IDLE, set_when_done=True)

    def _wait(self, bit: Status, *, set_when_done: bool, timeout_s: float = 60.0) -> int:
        """Poll STATUS: spin shortly, then sleep a little longer each time, at most a millisecond."""
        mask = bit.value
        started = time.monotonic()
        while True:
            # A plain number: flags cost microseconds, and this is on the way of every token.
            status = self._link.read_register(Register.STATUS)
            if bool(status & mask) == set_when_done:
                return status
            waited = time.monotonic() - started
            if waited > timeout_s:
                raise DeviceError(
                    f"the card did not reach {bit.name} within {timeout_s:.0f} s; its STATUS is {Status(status)!r}"
                )
            if waited > 100e-6:
                time.sleep(min(waited / 32, 1e-3))

    def _read_logits(self, step: "_Step") -> NDArray[np.float32]:
        vocab_size = self._capabilities.vocab_size
        size = step.shape.logit_rows * vocab_size * 4
        if not size:
            return np.zeros((0, vocab_size), np.float32)
        words = self._link.read_dram(self._dram.logits, size).view(np.float32)
        logits = words.reshape(step.shape.logit_rows, vocab_size)
        return logits if step.logit_order is None else logits[step.logit_order]


class _Step:
    """Rows put in the program's order: the prompt segment first, then decode rows; logits of the last rows."""

    def __init__(self, rows: Sequence[Row], capabilities: Capabilities) -> None:
        if not 1 <= len(rows) <= capabilities.max_rows:
            raise ValueError(f"a step has {len(rows)} rows; this device takes 1 to {capabilities.max_rows}")
        segments = segments_of(rows)
        for segment in segments:
            _check(segment, capabilities)
        long = [index for index, segment in enumerate(segments) if segment.num_rows > 1]
        if len(long) > 1:
            raise ValueError(f"{len(long)} slots have several rows each; a step takes one prompt segment")
        order = list(range(len(rows)))
        if long and long[0] > 0:
            first = sum(segment.num_rows for segment in segments[: long[0]])
            last = first + segments[long[0]].num_rows
            order = order[first:last] + order[:first] + order[last:]
            segments = [segments[long[0]], *segments[: long[0]], *segments[long[0] + 1 :]]
        self.segments = segments
        prefill_rows = segments[0].num_rows if long else 0
        wanted = [place for place, index in enumerate(order) if rows[index].want_logits]
        logit_rows = len(rows) - wanted[0] if wanted else 0
        self.shape = Shape(prefill_rows, len(rows) - prefill_rows, logit_rows)
        self.tokens = np.array([rows[index].token for index in order])
        self.positions = np.array([rows[index].position for index in order])
        if not (self.tokens.min() >= 0 and self.tokens.max() < capabilities.vocab_size):
            raise ValueError(f"token ids go from 0 to {capabilities.vocab_size - 1}")
        self.masks_from = (self.positions + 1) // ATTENTION_BLOCK * ATTENTION_BLOCK
        self.masks_from[:prefill_rows] = self.masks_from[0]
        self.logit_order = self._logit_order(rows, order, len(rows) - logit_rows)

    @staticmethod
    def _logit_order(rows: Sequence[Row], order: list[int], first: int) -> list[int] | None:
        """Which computed logits the caller wants, in the caller's order; None for all of them as they are."""
        place = {index: computed - first for computed, index in enumerate(order)}
        wanted = [place[index] for index, row in enumerate(rows) if row.want_logits]
        return None if wanted == list(range(len(rows) - first)) else wanted


def _page_format(dram: DramLayout, machine: MachineConfig) -> str:
    """What must be equal for a page to be understood: the image's basis, the weights' formats, and the machine's sizes,
    as sums depend on them."""
    geometry = dram.geometry
    kinds = "+".join(
        f"{len(geometry.layers_of(index))}x{kind.facts.num_kv_heads}x{kind.head}x{kind.value_rows}"
        + (f"s{kind.state}" if kind.state else "")
        for index, kind in enumerate(geometry.kinds)
    )
    formats = describe_formats(geometry.facts)
    return f"otpu{VERSION}-{formats}-{kinds}-d{machine.depth}c{machine.mcols}l{machine.lanes}"


def _check(segment: Segment, capabilities: Capabilities) -> None:
    if not 0 <= segment.slot < capabilities.num_slots:
        raise ValueError(f"slot {segment.slot} does not exist; there are {capabilities.num_slots}")
    end = segment.position + segment.num_rows
    if segment.position < 0 or end > capabilities.context_length:
        raise ValueError(f"position {end - 1} is outside the context of {capabilities.context_length} tokens")

"""What the host writes before a run: each row's hidden state, angles and mask, and each segment's addresses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.models.facts import LayerFacts
from npuserve.program.dram import WORDS_PER_SEGMENT, DramLayout, KvLayout
from npuserve.program.embedding import widen
from npuserve.program.geometry import ATTENTION_BLOCK, WORD
from npuserve.program.kernels.registers import SegmentWord
from npuserve.program.layer_inputs import LayerInputs
from npuserve.program.rotation import Rotation
from npuserve.program.tmem import Shape

VISIBLE, HIDDEN = np.float32(-0.0), np.float32(-np.inf)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one slot."""

    slot: int
    position: int
    num_rows: int

    @property
    def full_blocks(self) -> int:
        """Attention blocks that every row sees whole."""
        return (self.position + 1) // ATTENTION_BLOCK

    @property
    def masked_blocks(self) -> int:
        return (self.position + self.num_rows - 1) // ATTENTION_BLOCK + 1 - self.full_blocks

    def blocks(self, window: int | None) -> "Blocks":
        """What its rows see, each `window` positions at most."""
        full = self.full_blocks
        if window is None:
            return Blocks(0, 0, full)
        first = max(0, self.position - window + 1) // ATTENTION_BLOCK
        last_begins_at = max(0, self.position + self.num_rows - window)
        first_whole = min(-(-last_begins_at // ATTENTION_BLOCK), full)
        return Blocks(first, max(first_whole, first), max(full, first))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Attention blocks from `first` on: masked ones before `full`, those that all rows see whole, and from `last` on
    masked ones again."""

    first: int
    full: int
    last: int


def segments_of(rows: Sequence[Row]) -> list[Segment]:
    """Rows grouped by slot, in order; ValueError when a slot's rows are not consecutive and together."""
    segments: list[Segment] = []
    for row in rows:
        last = segments[-1] if segments else None
        if last is not None and last.slot == row.slot:
            if row.position != last.position + last.num_rows:
                raise ValueError(f"slot {row.slot}: position {row.position} does not follow its rows before")
            segments[-1] = Segment(last.slot, last.position, last.num_rows + 1)
        else:
            segments.append(Segment(row.slot, row.position, 1))
    if len({segment.slot for segment in segments}) < len(segments):
        raise ValueError("the rows of one slot do not stand together")
    return segments


class StepTable:
    """Encodes steps for one model: its embedding, and the layers' own inputs where it has such."""

    def __init__(
        self, dram: DramLayout, embedding: NDArray[np.generic], layer_inputs: LayerInputs | None = None
    ) -> None:
        self._dram, self._embedding, self._layer_inputs = dram, embedding, layer_inputs
        facts = dram.geometry.facts
        self._rotation = Rotation(facts.hidden_size) if facts.rotated else None
        rotations = [_angles(facts, dram.geometry.positions) for facts in dram.geometry.rotaries]
        self._angles = np.concatenate(rotations, axis=1) if rotations else None
        layers = range(facts.num_layers)
        self._layer_kinds = [facts.kind_of(layer) for layer in layers]
        self._layer_steps = np.zeros((facts.num_layers, 1, WORDS_PER_SEGMENT), np.uint32)
        for layer in layers:
            self._layer_steps[layer, 0, : SegmentWord.FULL_BLOCKS] = dram.kv_starts[facts.cache_of(layer)]
        self._columns = np.arange(2 * ATTENTION_BLOCK)

    def rows(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        masks_from: NDArray[np.int64],
        shape: Shape,
        segments: Sequence[Segment] = (),
    ) -> NDArray[np.uint8]:
        """The row records, bytes, in step order. `masks_from` is each row's first position that has a mask.

        Masks of windows follow from the segments, which are not needed where no layer has one.
        """
        geometry = self._dram.geometry
        size, scale = geometry.facts.hidden_size, np.float32(geometry.facts.embedding_scale)
        at = geometry.hidden + geometry.rotary_words
        columns = shape.mask_blocks * ATTENTION_BLOCK
        table = np.zeros((len(tokens), at + (1 + 2 * len(geometry.windows)) * columns), np.float32)
        table[:, :size] = self._hidden(tokens) * scale
        if self._angles is not None:
            table[:, geometry.hidden : at] = self._angles[positions]
        offsets = self._columns[None, :columns]
        visible = offsets <= (positions - masks_from)[:, None]
        table[:, at : at + columns] = np.where(visible, VISIBLE, HIDDEN)
        for window in geometry.windows:
            blocks = [segment.blocks(window) for segment in segments for _ in range(segment.num_rows)]
            for starts in ([block.first for block in blocks], [block.last for block in blocks]):
                at += columns
                seen = np.array(starts)[:, None] * ATTENTION_BLOCK + offsets
                visible = (seen <= positions[:, None]) & (seen > positions[:, None] - window)
                table[:, at : at + columns] = np.where(visible, VISIBLE, HIDDEN)
        return table.view(np.uint8).reshape(-1)

    def layer_inputs(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """The layers' own inputs, bytes, [layers][rows][input_size] fp32; None where the model has none."""
        if self._layer_inputs is None:
            return None
        facts = self._dram.geometry.facts
        rows = self._layer_inputs.rows(tokens) * np.float32(facts.input_scale * math.sqrt(0.5))
        by_layer = rows.reshape(len(tokens), facts.num_layers, facts.input_size).transpose(1, 0, 2)
        return np.ascontiguousarray(by_layer).view(np.uint8).reshape(-1)

    def _hidden(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """The embedding in the basis of the image."""
        rows = widen(self._embedding[tokens])
        return self._rotation.rows(rows) if self._rotation else rows

    def segments(self, segments: Sequence[Segment]) -> NDArray[np.uint8]:
        """The segment words of every layer, bytes, [layers][segments][16]."""
        kinds = [[self._words(kv, segment) for segment in segments] for kv in self._dram.kv_kinds]
        words = np.array(kinds, np.uint32)[self._layer_kinds] + self._layer_steps
        return words.view(np.uint8).reshape(-1)

    def _words(self, kv: KvLayout, segment: Segment) -> list[int]:
        """Of a layer whose cache begins where the slot does."""
        position, blocks = segment.position, segment.blocks(kv.geometry.facts.window)
        skipped = blocks.first * ATTENTION_BLOCK
        base = self._dram.slots + segment.slot * self._dram.slot_stride
        words = [0] * WORDS_PER_SEGMENT
        words[SegmentWord.KEYS] = base + skipped * kv.k_row
        words[SegmentWord.KEY_SCALES] = base + kv.k_scales + skipped * kv.k_scale_row
        words[SegmentWord.VALUES] = base + kv.values + skipped
        words[SegmentWord.VALUE_SCALES] = base + kv.v_scales + skipped * WORD
        words[SegmentWord.WRITE_KEYS] = base + position * kv.k_row
        words[SegmentWord.WRITE_KEY_SCALES] = base + kv.k_scales + position * kv.k_scale_row
        words[SegmentWord.WRITE_VALUES] = base + kv.values + position
        words[SegmentWord.WRITE_VALUE_SCALES] = base + kv.v_scales + position * WORD
        words[SegmentWord.STATE] = base + kv.state
        words[SegmentWord.HAS_STATE] = int(position > 0)
        words[SegmentWord.IS_NEW] = int(position == 0)
        words[SegmentWord.FIRST_BLOCKS] = blocks.full - blocks.first
        words[SegmentWord.FULL_BLOCKS] = blocks.last - blocks.full
        words[SegmentWord.MASKED_BLOCKS] = (position + segment.num_rows - 1) // ATTENTION_BLOCK + 1 - blocks.last
        return words


def _angles(facts: LayerFacts, num_positions: int) -> NDArray[np.float32]:
    """[positions, 2 * rotary_dim]: cosines twice, then sines negated and as they are."""
    angles = np.arange(num_positions)[:, None] * facts.inverse_frequencies[None, :]
    cosines, sines = np.cos(angles) * facts.rope_gain, np.sin(angles) * facts.rope_gain
    return np.concatenate([cosines, cosines, -sines, sines], axis=1).astype(np.float32)

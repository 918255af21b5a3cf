"""What the host writes before a run: each row's hidden state, angles and mask, and each segment's addresses."""

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
    """Encodes steps for one model; buffers are reused from step to step."""

    def __init__(self, dram: DramLayout, embedding: NDArray[np.generic]) -> None:
        self._dram, self._embedding = dram, embedding
        facts = dram.geometry.facts
        self._rotation = Rotation(facts.hidden_size) if facts.rotated else None
        rotations = [_angles(facts, dram.geometry.positions) for facts in dram.geometry.rotaries]
        self._angles = np.concatenate(rotations, axis=1) if rotations else None
        layers = range(facts.num_layers)
        self._layer_kinds = [facts.kind_of(layer) for layer in layers]
        self._layer_steps = np.zeros((facts.num_layers, 1, WORDS_PER_SEGMENT), np.uint32)
        for layer in layers:
            self._layer_steps[layer, 0, : SegmentWord.FULL_BLOCKS] = dram.kv_starts[layer]
        self._columns = np.arange(2 * ATTENTION_BLOCK)

    def rows(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], masks_from: NDArray[np.int64], shape: Shape
    ) -> NDArray[np.uint8]:
        """The row records, bytes, in step order. `masks_from` is each row's first position that has a mask."""
        geometry = self._dram.geometry
        size = geometry.facts.hidden_size
        mask = geometry.hidden + geometry.rotary_words
        columns = shape.mask_blocks * ATTENTION_BLOCK
        table = np.zeros((len(tokens), mask + columns), np.float32)
        table[:, :size] = self._hidden(tokens)
        if self._angles is not None:
            table[:, geometry.hidden : mask] = self._angles[positions]
        visible = self._columns[None, :columns] <= (positions - masks_from)[:, None]
        table[:, mask:] = np.where(visible, VISIBLE, HIDDEN)
        return table.view(np.uint8).reshape(-1)

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
        position = segment.position
        base = self._dram.slots + segment.slot * self._dram.slot_stride
        words = [0] * WORDS_PER_SEGMENT
        words[SegmentWord.KEYS] = base
        words[SegmentWord.KEY_SCALES] = base + kv.k_scales
        words[SegmentWord.VALUES] = base + kv.values
        words[SegmentWord.VALUE_SCALES] = base + kv.v_scales
        words[SegmentWord.WRITE_KEYS] = base + position * kv.k_row
        words[SegmentWord.WRITE_KEY_SCALES] = base + kv.k_scales + position * kv.k_scale_row
        words[SegmentWord.WRITE_VALUES] = base + kv.values + position
        words[SegmentWord.WRITE_VALUE_SCALES] = base + kv.v_scales + position * WORD
        words[SegmentWord.STATE] = base + kv.state
        words[SegmentWord.HAS_STATE] = int(position > 0)
        words[SegmentWord.FULL_BLOCKS] = segment.full_blocks
        words[SegmentWord.MASKED_BLOCKS] = segment.masked_blocks
        return words


def _angles(facts: LayerFacts, num_positions: int) -> NDArray[np.float32]:
    """[positions, 2 * rotary_dim]: cosines twice, then sines negated and as they are."""
    angles = np.arange(num_positions)[:, None] * facts.inverse_frequencies[None, :]
    cosines, sines = np.cos(angles) * facts.rope_gain, np.sin(angles) * facts.rope_gain
    return np.concatenate([cosines, cosines, -sines, sines], axis=1).astype(np.float32)

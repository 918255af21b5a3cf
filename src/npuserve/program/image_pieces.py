"""What an image is made of: a checkpoint's tensors stacked, rotated, quantized and placed."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.errors import CheckpointError
from npuserve.models.facts import DeltaFacts, LayerFacts, ModelFacts
from npuserve.program.dram import DIRECTORY_WORDS, DramLayout, LayerLayout, Matrix
from npuserve.program.embedding import EXACT_CANDIDATES, FALLBACK, holds, narrow
from npuserve.program.geometry import WORD
from npuserve.program.requantized import Requantized
from npuserve.program.rotation import Rotation
from npuserve.program.tensor_rows import TensorRows
from npuserve.quant import int8
from npuserve.quant.four_bit_rows import FourBitRows

Pieces = Iterator[tuple[int, NDArray[np.generic]]]
"""Contents of card memory with their addresses."""
HEAD_ROWS_AT_ONCE = 256
INPUT_ROWS_AT_ONCE = 64
ELEMENTS_AT_ONCE = 1 << 19
DERIVED = r".*rotary_emb\.inv_freq|rope_freqs\.weight|rope_factors_(long|short)\.weight"
"""Tensors whose values follow from the configuration."""
LOG2_E = math.log2(math.e)
Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""What becomes of a tensor's rows before they are quantized."""


def _unchanged(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows


class ImagePieces:
    """Makes the pieces of an image, each with its DRAM address; `requantized` is complete when all are made."""

    def __init__(self, checkpoint: Checkpoint, facts: ModelFacts, dram: DramLayout) -> None:
        self.checkpoint, self.facts, self.dram = checkpoint, facts, dram
        self.geometry = dram.geometry
        self._rotation = Rotation(facts.hidden_size) if facts.rotated else None
        self._used: set[str] = set()
        self.requantized = Requantized()

    def memory(self, embedding_dtype: np.dtype[np.generic]) -> Pieces:
        """Card memory in ascending order, and behind it the embedding in a type that holds it."""
        for layer in range(self.facts.num_layers):
            yield from self._layer(layer)
        if self.dram.directory_bytes:
            yield self.dram.directory, self._directory()
        yield self.dram.final_norm, self._norm(self.facts.final_norm)
        yield from self._rows(self.facts.embedding if self.facts.tied_head else self.facts.head, self.dram.head)
        for start, rows in self._embedding_rows():
            at = self.dram.image_bytes + start * self.facts.hidden_size * embedding_dtype.itemsize
            yield at, narrow(rows, embedding_dtype)

    def layer_inputs(self, offset: int) -> Pieces:
        """Codes of all tokens from `offset` on, scales behind them."""
        facts = self.facts
        if not facts.input_size:
            return
        columns = facts.num_layers * facts.input_size
        blocks = int8.num_blocks(columns)
        scales_at = offset + facts.vocab_size * blocks * int8.BLOCK
        self._expect(facts.input_embedding, (facts.vocab_size, columns))
        for start in range(0, facts.vocab_size, INPUT_ROWS_AT_ONCE):
            stop = min(start + INPUT_ROWS_AT_ONCE, facts.vocab_size)
            rows = self.checkpoint.tensor_rows(facts.input_embedding, start, stop)
            codes, scales = int8.pack(self._finite(facts.input_embedding, rows))
            yield offset + start * blocks * int8.BLOCK, codes
            yield scales_at + start * blocks * WORD, scales

    def refuse_leftovers(self) -> None:
        """A tensor that nothing asked for means that this is another model than its configuration says."""
        skipped = re.compile(f"{DERIVED}|{self.facts.skipped}" if self.facts.skipped else DERIVED)
        left = [name for name in self.checkpoint.tensor_names() if name not in self._used and not skipped.match(name)]
        if self.facts.tied_head:
            left = [name for name in left if name != self.facts.head]
        if left:
            raise CheckpointError(
                f"{self.checkpoint.path}: {left[0]} is no tensor of {self.facts.model_type} as it is served"
                f" ({len(left)} such in all); the checkpoint is of another family or has parts that are not supported"
            )

    def embedding_dtype(self) -> np.dtype[np.generic]:
        """The narrowest type that holds every embedding exactly."""
        candidates = list(EXACT_CANDIDATES)
        for _, rows in self._embedding_rows():
            candidates = [dtype for dtype in candidates if holds(rows, dtype)]
            if not candidates:
                return FALLBACK
        return candidates[0]

    def _embedding_rows(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        self._expect(self.facts.embedding, (self.facts.vocab_size, self.facts.hidden_size))
        for start in range(0, self.facts.vocab_size, HEAD_ROWS_AT_ONCE):
            stop = min(start + HEAD_ROWS_AT_ONCE, self.facts.vocab_size)
            yield (
                start,
                self._finite(self.facts.embedding, self.checkpoint.tensor_rows(self.facts.embedding, start, stop)),
            )

    def _directory(self) -> NDArray[np.uint32]:
        """See `DramLayout.directory`."""
        entries = np.zeros((self.facts.num_layers, DIRECTORY_WORDS), np.uint32)
        for layer, entry in enumerate(entries):
            entry[0] = self.dram.layer_starts[layer]
            entry[1 + self.facts.kind_of(layer)] = 1
        return entries

    def _layer(self, index: int) -> Pieces:
        base, kind = self.dram.layer_starts[index], self.facts.kind_of(index)
        facts, layer = self.facts.kinds[kind], self.dram.kinds[kind]
        names, prefix = facts.names, self.facts.layer_prefix.format(index)
        yield base, self._layer_vectors(prefix, facts)
        parts = [(prefix + name, rows) for name, rows in facts.inputs]
        inputs = self._reading(layer.qkv, parts, prefix + names.input_norm)
        if facts.output_gate:
            inputs = _gates_last(inputs, facts)
        if facts.delta:
            inputs[0] = inputs[0][_pair_heads(facts.delta)]
        if not facts.qk_norm:
            _scale_first(inputs, facts.num_heads * facts.head_dim, _score_scale(facts))
        yield from self._packed(base, layer.qkv, inputs)
        yield from self._packed(base, layer.o, self._writing(layer.o, prefix + names.o, layer.geometry.attention_size))
        parts = [(prefix + name, facts.intermediate_size) for name in (names.gate, names.up)]
        yield from self._packed(base, layer.gate_up, self._reading(layer.gate_up, parts, prefix + names.post_norm))
        down = self._writing(layer.down, prefix + names.down, facts.intermediate_size)
        yield from self._packed(base, layer.down, down)
        if facts.input_size:
            yield from self._input_matrices(base, index, prefix, facts, layer)

    def _input_matrices(self, base: int, index: int, prefix: str, facts: LayerFacts, layer: LayerLayout) -> Pieces:
        """The layer's rows of the projection of the embedding, which is divided by the root of the hidden size."""
        model, size = self.facts, facts.input_size
        self._expect(model.input_projection, (model.num_layers * size, facts.hidden_size))
        rows = self._part(layer.inputs, model.input_projection, index * size, (index + 1) * size)
        rows.scale(size, facts.hidden_size**-0.5)
        yield from self._packed(base, layer.inputs, [rows])
        gate = self._stacked(layer.input_gate, [(prefix + facts.names.input_gate, size)], facts.hidden_size)
        yield from self._packed(base, layer.input_gate, gate)
        name = prefix + facts.names.input_projection
        projection = self._stacked(layer.input_projection, [(name, facts.hidden_size)], size)
        yield from self._packed(base, layer.input_projection, projection)

    def _layer_vectors(self, prefix: str, facts: LayerFacts) -> NDArray[np.float32]:
        names, scale = facts.names, np.float32(_score_scale(facts))
        parts = [self._norm(prefix + names.input_norm), self._norm(prefix + names.post_norm)]
        if names.q_norm:
            parts.append(self._norm_weight(prefix + names.q_norm, facts.head_dim) * scale)
        if names.k_norm and facts.owns_cache:
            parts.append(self._norm_weight(prefix + names.k_norm, facts.head_dim))
        if facts.qkv_bias:
            biases = [self._bias(prefix + name, rows) for name, rows in facts.inputs]
            if not facts.qk_norm and not facts.conv_taps:
                biases[0] = biases[0] * scale
            parts += biases
        if facts.o_bias:
            bias = self._bias(prefix + names.o, facts.hidden_size)
            parts.append(self._rotation.vector(bias) if self._rotation else bias)
        if facts.conv_taps:
            parts.append(self._taps(f"{prefix}{names.conv}.weight", facts))
            if facts.qkv_bias:
                parts.append(self._bias(prefix + names.conv, facts.hidden_size))
        if facts.delta:
            heads = facts.delta.num_value_heads
            parts.append(self._tensor(prefix + names.dt_bias, heads))
            parts.append(np.exp(self._tensor(prefix + names.a_log, heads)) * np.float32(-LOG2_E))
            parts.append(self._tensor(prefix + names.delta_norm, facts.delta.value_dim))
        parts += [
            self._tensor(prefix + name, facts.hidden_size) for name in (names.after_attention, names.after_mlp) if name
        ]
        if facts.input_size:
            parts.append(self._tensor(self.facts.input_norm, facts.input_size) * np.float32(math.sqrt(0.5)))
            parts.append(self._tensor(prefix + names.after_input, facts.hidden_size))
        if names.scalar:
            parts.append(self._tensor(prefix + names.scalar, 1))
        return np.concatenate(parts).astype(np.float32)

    def _taps(self, name: str, facts: LayerFacts) -> NDArray[np.float32]:
        """A convolution's weights, [taps, hidden] flat; GGUF files have left out the axis of one channel."""
        size, axis = facts.conv_channels, (1,) * (len(self.checkpoint.shape(name)) - 2)
        taps = self._tensor(name, size, *axis, facts.conv_taps).reshape(size, -1)
        return (taps[_pair_heads(facts.delta)] if facts.delta else taps).T.ravel()

    def _norm_weight(self, name: str, size: int) -> NDArray[np.float32]:
        """What a normed vector is multiplied with."""
        return self._tensor(name, size) + np.float32(self.facts.norm_offset)

    def _norm(self, name: str) -> NDArray[np.float32]:
        """A norm's weight with zeros up to whole blocks; ones where it is folded into the matrices behind it."""
        weight = self._norm_weight(name, self.facts.hidden_size)
        return np.pad(np.ones_like(weight) if self._rotation else weight, (0, self.geometry.hidden - len(weight)))

    def _reading(self, matrix: Matrix, parts: Sequence[tuple[str, int]], norm: str) -> list[TensorRows]:
        """Stacked matrices that read the hidden state behind a norm."""
        return self._stacked(matrix, parts, self.facts.hidden_size, self._behind(norm))

    def _behind(self, norm: str) -> Change:
        """What becomes of rows that the normed hidden state is multiplied with."""
        rotation = self._rotation
        if rotation is None:
            return _unchanged
        weight = self._norm_weight(norm, self.facts.hidden_size)
        return lambda rows: rotation.rows(rows, weight)

    def _writing(self, matrix: Matrix, name: str, num_columns: int) -> list[TensorRows]:
        """A matrix whose product is added to the hidden state."""
        change = self._rotation.columns if self._rotation else _unchanged
        return self._stacked(matrix, [(name, self.facts.hidden_size)], num_columns, change)

    def _bias(self, name: str, size: int) -> NDArray[np.float32]:
        return self._tensor(f"{name}.bias", size)

    def _stacked(
        self, matrix: Matrix, parts: Sequence[tuple[str, int]], num_columns: int, change: Change = _unchanged
    ) -> list[TensorRows]:
        """Matrices of (name, rows) below each other; neighbours of one name are slices of one tensor."""
        found = []
        for name, slices in groupby(parts, lambda part: part[0]):
            num_rows = sum(rows for _, rows in slices)
            self._expect(f"{name}.weight", (num_rows, num_columns))
            found.append(self._part(matrix, f"{name}.weight", 0, num_rows, change))
        return found

    def _part(self, matrix: Matrix, name: str, start: int, stop: int, change: Change = _unchanged) -> TensorRows:
        """Rows of a tensor for a matrix: as the checkpoint has them where that is wanted and possible."""
        kind, kept = self.checkpoint.four_bit_kind(name), matrix.format
        if kind and self.facts.takes_over and kind in kept.take_over:
            return TensorRows(name, self.checkpoint.four_bit_rows(name, start, stop))
        if kind:
            self.requantized.add_tensor(name, kind, kept)
        return TensorRows(name, change(self._finite(name, self.checkpoint.tensor_rows(name, start, stop))))

    def _tensor(self, name: str, *shape: int) -> NDArray[np.float32]:
        self._expect(name, shape)
        return self._finite(name, self.checkpoint.tensor(name))

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{self.checkpoint.path}: {name} holds a number that is not finite; the file is damaged"
            )
        return values

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        self._used.add(name)
        if (found := self.checkpoint.shape(name)) != shape:
            raise CheckpointError(
                f"{self.checkpoint.path}: {name} has shape {found}, but the configuration says {shape}"
            )

    def _rows(self, name: str, matrix: Matrix) -> Pieces:
        """The head, which is too large to hold in fp32 at once."""
        self._expect(name, (matrix.n, self.facts.hidden_size))
        starts, change = range(0, matrix.n, HEAD_ROWS_AT_ONCE), self._behind(self.facts.final_norm)
        stops = (min(start + HEAD_ROWS_AT_ONCE, matrix.n) for start in starts)
        parts = (self._part(matrix, name, start, stop, change) for start, stop in zip(starts, stops, strict=True))
        return self._packed(0, matrix, parts)

    def _packed(self, base: int, matrix: Matrix, parts: Iterable[TensorRows]) -> Pieces:
        """Codes a few rows at a time, so that scratch is small, then all scales."""
        scales, end = [], 0
        for part in parts:
            step = max(1, ELEMENTS_AT_ONCE // part.num_columns)
            for first in range(0, len(part), step):
                codes, words = self._pack(matrix, part[first : first + step])
                yield base + matrix.weights + end * matrix.row_stride, codes
                scales.append(words)
                end += len(words)
        if scales:
            yield base + matrix.scales, np.concatenate(scales)

    def _pack(self, matrix: Matrix, part: TensorRows) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        if not isinstance(part.rows, FourBitRows):
            return matrix.pack(part.rows)
        codes, words, num_rounded = matrix.take_over(part.rows)
        if num_rounded:
            self.requantized.add_blocks(part.name, num_rounded, part.rows.kind, matrix.format)
        return codes, words


def _gates_last(parts: Sequence[TensorRows], facts: LayerFacts) -> list[TensorRows]:
    """q's heads with a gate behind each, then k and v, as q, k, v and all gates."""
    first, *others = parts
    size = facts.num_heads * facts.head_dim
    pairs = np.arange(2 * size, dtype=np.intp).reshape(facts.num_heads, 2, facts.head_dim)
    q, gates = (first[pairs[:, index].ravel()] for index in range(2))
    return [q, first[2 * size :], *others, gates]


def _scale_first(parts: Sequence[TensorRows], num_rows: int, factor: float) -> None:
    """The first rows of a matrix times a factor, in place."""
    for part in parts:
        part.scale(min(num_rows, len(part)), factor)
        num_rows -= min(num_rows, len(part))


def _pair_heads(delta: DeltaFacts) -> NDArray[np.intp]:
    """The order that makes of rows of q's heads, k's heads and v: pairs of a head of q and one of k, and then v."""
    places = np.arange(delta.channels, dtype=np.intp)
    halves = places[: 2 * delta.keys].reshape(2, delta.num_key_heads, delta.key_dim)
    return np.concatenate([halves.swapaxes(0, 1).ravel(), places[2 * delta.keys :]])


def _score_scale(facts: LayerFacts) -> float:
    """Scores come out in units of log2."""
    return LOG2_E * facts.score_scale

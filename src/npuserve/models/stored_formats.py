"""Which of a model's matrices a checkpoint has in 4 bits already, and the formats that hold them exactly."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.models.facts import LayerFacts, LayerFormats, ModelFacts
from npuserve.quant import fp4
from npuserve.quant.formats import FP4, NVFP4, WeightFormat
from npuserve.quant.four_bit_rows import FourBitKind

Kinds = frozenset[FourBitKind]


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """For each part of a layer that has a format of its own (`LayerFormats`) the one that holds the checkpoint's
    tensors; None where not all of them are in 4 bits."""

    mixer: WeightFormat | None = None
    gate_up: WeightFormat | None = None
    down: WeightFormat | None = None
    inputs: WeightFormat | None = None


MOST_KINDS = 8
"""Of layers; each is a part of every program."""
PARTS = tuple(part.name for part in fields(StoredLayer))


@dataclass(frozen=True, slots=True)
class StoredFormats:
    """Of all layers and the head. `kinds` has what is in 4 bits at all, by layer and part, and by part alone for the
    head."""

    layers: tuple[StoredLayer, ...] = ()
    head: WeightFormat | None = None
    layer_kinds: tuple[dict[str, Kinds], ...] = ()
    head_kinds: Kinds = field(default=Kinds())

    def fits(self, layers: Sequence[LayerFormats], head: WeightFormat) -> bool:
        """Whether some matrix in these formats can take over a tensor as it is."""
        pairs = [
            (kinds[part], getattr(formats, part))
            for kinds, formats in zip(self.layer_kinds, layers, strict=False)
            for part in PARTS
        ]
        return any(kind in kept.take_over for kinds, kept in [*pairs, (self.head_kinds, head)] for kind in kinds)


NOTHING_STORED = StoredFormats()


def stored_formats(checkpoint: Checkpoint, facts: ModelFacts) -> StoredFormats:
    """What `checkpoint` has of the model that `facts` describe.

    NVFP4 is held by nvfp4. MXFP4 is held by fp4, which is smaller and faster, where that is exact, else by nvfp4; where
    layers would differ too much by that, by nvfp4 in all of them. This reads the scales of MXFP4 tensors.
    """
    reading = _Reading(checkpoint)
    layers = [_layer_names(facts, layer) for layer in range(facts.num_layers)]
    head_name = facts.embedding if facts.tied_head else facts.head
    if not reading.kinds({head_name}.union(*(names for layer in layers for names in layer.values()))):
        return NOTHING_STORED
    scaled = {"inputs"} | ({"mixer"} if any(map(_scales_queries, facts.kinds)) else set())
    found = [
        StoredLayer(**{part: reading.format_of(layer[part], scaled=part in scaled) for part in PARTS})
        for layer in layers
    ]
    kinds = {(facts.kind_of(index), layer) for index, layer in enumerate(found)}
    return StoredFormats(
        layers=tuple(found if len(kinds) <= MOST_KINDS else _evened(found)),
        head=reading.format_of({head_name}),
        layer_kinds=tuple({part: reading.kinds(layer[part]) for part in PARTS} for layer in layers),
        head_kinds=reading.kinds({head_name}),
    )


def _evened(layers: Sequence[StoredLayer]) -> list[StoredLayer]:
    """nvfp4 in place of fp4 for the parts that have both, as it holds all."""
    mixed = [part for part in PARTS if {FP4, NVFP4} <= {getattr(layer, part) for layer in layers}]
    return [replace(layer, **{part: NVFP4 for part in mixed if getattr(layer, part) is FP4}) for layer in layers]


def _layer_names(facts: ModelFacts, layer: int) -> dict[str, set[str]]:
    """Names of the matrices of each part of a layer."""
    kind, prefix = facts.kinds[facts.kind_of(layer)], facts.layer_prefix.format(layer)
    names = kind.names
    parts = {
        "mixer": [name for name, _ in kind.inputs] + [names.o],
        "gate_up": [names.gate, names.up],
        "down": [names.down],
        "inputs": [names.input_gate, names.input_projection] if kind.input_size else [],
    }
    found = {part: {f"{prefix}{name}.weight" for name in stems} for part, stems in parts.items()}
    if kind.input_size:
        found["inputs"].add(facts.input_projection)
    return found


class _Reading:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._kinds = {name: kind for name in checkpoint.tensor_names() if (kind := checkpoint.four_bit_kind(name))}

    def kinds(self, names: Iterable[str]) -> Kinds:
        return frozenset(self._kinds[name] for name in names if name in self._kinds)

    def format_of(self, names: set[str], *, scaled: bool = False) -> WeightFormat | None:
        """What holds all of these tensors; `scaled` when the image multiplies a factor into them, which fp4 rounds."""
        if not names or not names <= self._kinds.keys():
            return None
        fits_fp4 = self.kinds(names) == {FourBitKind.MXFP4} and not scaled and self._exact_in_fp4(names)
        return FP4 if fits_fp4 else NVFP4

    def _exact_in_fp4(self, names: set[str]) -> bool:
        return all(
            fp4.is_exact(self._checkpoint.four_bit_rows(name, row, row + 1))
            for name in sorted(names)
            for row in fp4.rows_with_spread(self._checkpoint.four_bit_scales(name))
        )


def _scales_queries(facts: LayerFacts) -> bool:
    """Whether the image multiplies q's rows with the scale of scores."""
    return facts.num_heads > 0 and not facts.qk_norm

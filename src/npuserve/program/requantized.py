"""What of a 4-bit checkpoint an image could not take over as it is."""

from collections import Counter, defaultdict

from npuserve.quant.formats import WeightFormat
from npuserve.quant.four_bit_rows import FourBitKind


class Requantized:
    """Collects, while an image is built, tensors that were quantized anew and single blocks that were."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._blocks: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add_tensor(self, name: str, kind: FourBitKind, kept: WeightFormat) -> None:
        self._tensors[kind.name, kept.name].add(name)

    def add_blocks(self, name: str, num_blocks: int, kind: FourBitKind, kept: WeightFormat) -> None:
        self._blocks[kind.name, kept.name][name] += num_blocks

    def __str__(self) -> str:
        """One sentence; empty when all was taken over exactly."""
        parts = [f"{len(names)} {kind} tensors as {kept}" for (kind, kept), names in sorted(self._tensors.items())]
        parts += [
            f"{blocks.total()} blocks of {len(blocks)} {kind} tensors in {kept}"
            for (kind, kept), blocks in sorted(self._blocks.items())
        ]
        return f"quantized anew, as they are not exact there: {', '.join(parts)}" if parts else ""

"""The weight formats by name: what each is to MM, how large its rows are, how it is packed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npuserve.errors import ConfigError
from npuserve.quant import fp4, int4, int8, nvfp4, two_level
from npuserve.quant.four_bit_rows import FourBitKind, FourBitRows, TakenOver

WORD = 4


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One format. `wf` is MM's field; sizes are per row of KB blocks of 128.

    `pack` takes float32 [N, K] and returns rows [N, row_bytes(KB)] and scale words [N, scale_words(KB)];
    `unpack` is its inverse, with the number of columns that are no padding. `take_over` has for each kind of 4-bit
    checkpoint that the format can hold exactly, or nearly so, what does it.
    """

    name: str
    wf: int
    row_bytes: Callable[[int], int]
    scale_words: Callable[[int], int]
    pack: Callable[[NDArray[np.float32]], tuple[NDArray[Any], NDArray[Any]]]
    unpack: Callable[[NDArray[Any], NDArray[Any], int | None], NDArray[np.float32]]
    take_over: Mapping[FourBitKind, Callable[[FourBitRows], TakenOver]] = field(default_factory=dict, hash=False)

    @property
    def is_four_bit(self) -> bool:
        return self.wf != INT8.wf

    def scale_stride(self, blocks: int, *, paired: bool = False) -> int:
        """Bytes between rows of scales; PAIR reads two words at once, so its rows lie on multiples of 8."""
        size = WORD * self.scale_words(blocks)
        return -(-size // (2 * WORD)) * 2 * WORD if paired else size


def _one_word(blocks: int) -> int:
    return blocks


INT8 = WeightFormat("int8", 0, lambda blocks: blocks * int8.BLOCK, _one_word, int8.pack, int8.unpack)
INT4 = WeightFormat("int4", 1, two_level.row_bytes, _one_word, int4.pack, int4.unpack)
FP4 = WeightFormat("fp4", 2, two_level.row_bytes, _one_word, fp4.pack, fp4.unpack, {FourBitKind.MXFP4: fp4.take_over})
NVFP4 = WeightFormat(
    "nvfp4",
    3,
    two_level.row_bytes,
    nvfp4.scale_words,
    nvfp4.pack,
    nvfp4.unpack,
    dict.fromkeys(FourBitKind, nvfp4.take_over),
)
FORMATS = {chosen.name: chosen for chosen in (INT8, FP4, INT4, NVFP4)}


def weight_format(name: str) -> WeightFormat:
    """The format of a name; ConfigError with the known ones."""
    if (found := FORMATS.get(name)) is None:
        raise ConfigError(f"weight format {name!r} is not known; there are {', '.join(FORMATS)}")
    return found

"""Rows of one tensor on their way into a matrix of the image."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npuserve.quant.four_bit_rows import FourBitRows


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Numbers, or what a 4-bit checkpoint has and the matrix's format takes over. `name` is the tensor's."""

    name: str
    rows: NDArray[np.float32] | FourBitRows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: slice | NDArray[np.intp]) -> "TensorRows":
        return TensorRows(self.name, self.rows[places])

    @property
    def num_columns(self) -> int:
        return self.rows.num_columns if isinstance(self.rows, FourBitRows) else int(self.rows.shape[1])

    def scale(self, num_rows: int, factor: float) -> None:
        """The first rows times a factor, in place."""
        scaled = self.rows.row_scales if isinstance(self.rows, FourBitRows) else self.rows
        scaled[:num_rows] *= np.float32(factor)

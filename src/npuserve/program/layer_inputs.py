"""The embeddings that belong to a token and a layer, as the host keeps them: int8 with a scale for 128 numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npuserve.quant import int8


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """`codes` [vocab_size, whole blocks] int8 and `scales` [vocab_size, blocks], of `num_columns` numbers a token."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    num_columns: int

    def rows(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [tokens, num_columns]."""
        return int8.unpack(self.codes[tokens], self.scales[tokens], self.num_columns)

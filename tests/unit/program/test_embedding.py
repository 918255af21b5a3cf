import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npuserve.program.embedding import EXACT_CANDIDATES, FALLBACK, holds, narrow, widen

HALF, BRAIN = EXACT_CANDIDATES


@given(hnp.arrays(np.uint16, st.tuples(st.integers(1, 3), st.integers(1, 9))))
def test_bfloat16_comes_back_to_the_bit(rows: np.ndarray) -> None:
    wide = widen(rows)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(narrow(wide, BRAIN), rows)


@given(hnp.arrays(np.float16, (2, 5), elements=st.floats(width=16, allow_nan=False)))
def test_float16_is_held_exactly(rows: np.ndarray) -> None:
    assert holds(rows.astype(np.float32), HALF)
    np.testing.assert_array_equal(widen(narrow(rows.astype(np.float32), HALF)), rows.astype(np.float32))


@pytest.mark.parametrize(
    ("value", "half", "brain"),
    [(0.1, False, False), (65504.0, True, False), (65536.0, False, True), (1e-40, False, False), (0.0, True, True)],
)
def test_only_a_type_that_loses_nothing_holds_a_value(value: float, half: bool, brain: bool) -> None:
    rows = np.array([[1.0, value]], np.float32)
    assert holds(rows, HALF) is half
    assert holds(rows, BRAIN) is brain
    assert holds(rows, FALLBACK)

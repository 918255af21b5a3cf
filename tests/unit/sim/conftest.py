"""The hand-made machine tests run on every implementation that is there."""

import pytest

from npuserve.sim.native import NativeMachine, available
from npuserve.sim.reference import ReferenceMachine
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench


@pytest.fixture(params=["reference", "native"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "reference":
        return Bench(ReferenceMachine(SMALL, SMALL_DRAM_BYTES))
    if not available():
        pytest.skip("the native core is not built")
    return Bench(NativeMachine(SMALL, SMALL_DRAM_BYTES, threads=1))

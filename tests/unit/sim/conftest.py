"""The hand-made machine tests run on every implementation that is there."""

import pytest

from npuserve.sim.native import NativeMachine, available, kernel_sets
from npuserve.sim.reference import ReferenceMachine
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench


@pytest.fixture(params=["reference", "generic", "avx2", "avx512vnni"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """A bench on the reference, and on the native core with each of its kernel sets."""
    if request.param == "reference":
        return Bench(ReferenceMachine(SMALL, SMALL_DRAM_BYTES))
    if not available():
        pytest.skip("the native core is not built")
    if request.param not in kernel_sets():
        pytest.skip(f"this processor does not run the {request.param} kernels")
    return Bench(NativeMachine(SMALL, SMALL_DRAM_BYTES, threads=1, kernels=request.param))

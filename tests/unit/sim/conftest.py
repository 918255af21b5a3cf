"""The hand-made machine tests run on every implementation that is there."""

import importlib

import pytest

from npuserve.sim.reference import ReferenceMachine
from small_machine import SMALL, SMALL_DRAM_BYTES, Bench


@pytest.fixture(params=["reference", "native"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "reference":
        return Bench(ReferenceMachine(SMALL, SMALL_DRAM_BYTES))
    pytest.importorskip("npuserve.sim._native", reason="the native core is not built")
    native = importlib.import_module("npuserve.sim.native")
    return Bench(native.NativeMachine(SMALL, SMALL_DRAM_BYTES))

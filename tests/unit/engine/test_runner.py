import time
from collections.abc import Callable, Sequence

import pytest

from npuserve.core import Request, Row, SamplingParams
from npuserve.devices.base import StepResult, nothing
from npuserve.devices.null import NullDevice
from npuserve.engine import runner
from npuserve.engine.scheduler import Batch, Scheduler
from npuserve.engine.sequence import Sequence as TokenSequence
from npuserve.engine.settings import EngineSettings
from npuserve.errors import DeviceError, DeviceUnavailableError, MachineFault
from scheduling import next_batch


class Raising(NullDevice):
    """Raises what it is given instead of stepping."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def step(self, rows: Sequence[Row], meanwhile: Callable[[], None] = nothing) -> StepResult:
        raise self._error


def batch_of(device: NullDevice, *prompts: tuple[int, ...], sampling: SamplingParams) -> Batch:
    scheduler = Scheduler(EngineSettings(), device.capabilities)
    for number, prompt in enumerate(prompts):
        scheduler.add(TokenSequence(Request(f"r{number}", prompt, sampling)))
    return next_batch(scheduler, 0.0)


def test_each_sequence_that_wants_one_gets_its_own_rows_token() -> None:
    device = NullDevice(script=lambda history: history[-1] + 1)
    batch = batch_of(device, (5,), (7,), sampling=SamplingParams(temperature=0.0))
    assert runner.run(device, batch, time.monotonic).tokens == {"r0": 6, "r1": 8}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DeviceError("the card stopped"), "the card stopped"),
        (DeviceUnavailableError("the card is gone"), "the card is gone"),
        (MachineFault("bad opcode at pc 3"), "bad opcode at pc 3"),
        (ValueError("position 3 follows a gap"), "fault of the server"),
    ],
)
def test_whatever_breaks_a_step_is_a_device_error(error: Exception, message: str) -> None:
    device = Raising(error)
    batch = batch_of(device, (5,), sampling=SamplingParams(temperature=0.0))
    with pytest.raises(DeviceError, match=message) as raised:
        runner.run(device, batch, time.monotonic)
    assert error in (raised.value, raised.value.__cause__)


def test_parameters_that_break_the_sampler_fault_their_own_sequence_only() -> None:
    device = NullDevice(vocab_size=100)
    batch = batch_of(device, (5,), (7,), sampling=SamplingParams(temperature=0.0))
    broken = Request("r0", (5,), SamplingParams(logit_bias=((100, 1.0),)))
    batch.sampled[0].sampler = TokenSequence(broken).sampler
    outcome = runner.run(device, batch, time.monotonic)
    assert list(outcome.tokens) == ["r1"]
    assert [(sequence.id, str(error)) for sequence, error in outcome.faults] == [
        ("r0", "sampling broke on a fault of the server; see its log")
    ]

"""One batch on the device: rows in, one token or one fault for each sequence that asked."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from npuserve.devices.base import Device
from npuserve.engine.scheduler import Batch
from npuserve.engine.sequence import Sequence
from npuserve.errors import DeviceError, NpuserveError

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What a step gave: `tokens` by request id, and sequences that got none with the reason.

    Seconds: `program_s` and `device_s` as the device tells them, `sampling_s` of our own.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[Sequence, DeviceError]] = field(default_factory=list)
    program_s: float = 0.0
    device_s: float = 0.0
    sampling_s: float = 0.0


def run(device: Device, batch: Batch, clock: Callable[[], float]) -> Outcome:
    """Step `device` through `batch` and sample.

    Raises DeviceError when the step failed as a whole; a fault that is not the device's own is logged and told as one.
    """
    try:
        result = device.step(batch.rows)
    except DeviceError:
        raise
    except NpuserveError as error:
        raise DeviceError(str(error)) from error
    except Exception as error:
        _log.exception("a device step broke")
        raise DeviceError("the step broke on a fault of the server; see its log") from error
    started_s = clock()
    outcome = Outcome(program_s=result.program_s, device_s=result.device_s)
    for sequence, logits in zip(batch.sampled, result.logits, strict=True):
        try:
            outcome.tokens[sequence.id] = sequence.sampler.sample(logits, sequence.tokens)
        except DeviceError as error:
            outcome.faults.append((sequence, error))
        except Exception:
            # A fault of ours over one request's parameters must not take its companions with it.
            _log.exception("sampling for request %s broke", sequence.id)
            outcome.faults.append((sequence, DeviceError("sampling broke on a fault of the server; see its log")))
    outcome.sampling_s = clock() - started_s
    return outcome

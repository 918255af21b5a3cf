"""One batch on the device: rows in, one token or one fault for each sequence that asked."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from npuserve.devices.base import Device, nothing
from npuserve.engine.logprobs import token_logprob
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


def run(device: Device, batch: Batch, clock: Callable[[], float], meanwhile: Callable[[], None] = nothing) -> Outcome:
    """Step `device` through `batch` and sample; `meanwhile` is for `Device.step`.

    Raises DeviceError when the step failed as a whole; a fault that is not the device's own is logged and told as one.
    """
    try:
        result = device.step(batch.rows, meanwhile)
    except DeviceError:
        raise
    except NpuserveError as error:
        raise DeviceError(str(error)) from error
    except Exception as error:
        _log.exception("a device step broke")
        raise DeviceError("the step broke on a fault of the server; see its log") from error
    started_s = clock()
    outcome = Outcome(program_s=result.program_s, device_s=result.device_s)
    for sequence, count, logits in _parts(batch, result.logits):
        try:
            token = _follow(sequence, count, logits)
            if token is not None:
                outcome.tokens[sequence.id] = token
        except DeviceError as error:
            outcome.faults.append((sequence, error))
        except Exception:
            # A fault of ours over one request's parameters must not take its companions with it.
            _log.exception("sampling for request %s broke", sequence.id)
            outcome.faults.append((sequence, DeviceError("sampling broke on a fault of the server; see its log")))
    outcome.sampling_s = clock() - started_s
    return outcome


def _parts(batch: Batch, logits: NDArray[np.float32]) -> Iterator[tuple[Sequence, int, NDArray[np.float32]]]:
    """The sequences of `batch` with the number of their rows and the logits [n, vocab] that these rows asked for."""
    row = done = 0
    for sequence, count in batch.parts:
        num_wanted = sum(wanted.want_logits for wanted in batch.rows[row : row + count])
        yield sequence, count, logits[done : done + num_wanted]
        row += count
        done += num_wanted
    assert done == len(logits), f"the device gave {len(logits)} rows of logits, not {done}"


def _follow(sequence: Sequence, count: int, logits: NDArray[np.float32]) -> int | None:
    """The token that follows the `count` rows just run, None when they are not the last pending ones."""
    request = sequence.request
    if request.prompt_logprobs and sequence.num_computed < len(request.prompt_ids):
        _note_prompt(sequence, count, logits)
    if count != sequence.num_pending:
        return None
    last, constraint = logits[-1], request.constraint
    token = sequence.sampler.sample(last, sequence.tokens, constraint.allowed() if constraint else None)
    if request.num_logprobs is not None:
        sequence.note_logprob(token_logprob(last, token, request.num_logprobs))
    if constraint is not None:
        constraint.accept(token)
    return token


def _note_prompt(sequence: Sequence, count: int, logits: NDArray[np.float32]) -> None:
    """Log probabilities of the prompt tokens that follow the rows just run; the row of the last one has none.

    Rows that were run again, after the sequence had left its slot, were noted before.
    """
    prompt = sequence.request.prompt_ids
    start = sequence.num_computed + 1
    num_noted = sequence.next_unnoted() - start
    following = prompt[start : start + count]
    if not np.isfinite(logits).all():
        raise DeviceError(f"the device gave logits that are not finite between position {start} and {start + count}")
    for row, token in list(zip(logits, following, strict=False))[num_noted:]:
        sequence.note_prompt_logprob(token_logprob(row, token, sequence.request.num_logprobs or 0))

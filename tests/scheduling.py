"""The scheduler's two halves of a round in one, as the engine calls them."""

from npuserve.engine.scheduler import Batch, Scheduler


def next_batch(scheduler: Scheduler, now_s: float = 0.0) -> Batch:
    """Admit who fits and choose the rows of the next step."""
    scheduler.admit(now_s)
    return scheduler.schedule()

from dataclasses import dataclass, field

import pytest

from npuserve.engine.stats import EngineStats, SlotStats
from npuserve.server.model_routes import STALLED_AFTER_S, health_status


@dataclass
class StandInEngine:
    failed: bool = False
    now: EngineStats = field(default_factory=EngineStats)

    def stats(self) -> EngineStats:
        return self.now


@dataclass
class StandInState:
    engine: StandInEngine = field(default_factory=StandInEngine)
    stopping: bool = False


def running(age_s: float, last_step_s: float | None) -> StandInState:
    stats = EngineStats(num_running=1, slots=(SlotStats(0, "a", 5, age_s),), last_step_s=last_step_s)
    return StandInState(StandInEngine(now=stats))


NOW_S = 1000.0
LONG_S = STALLED_AFTER_S + 1


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (StandInState(), "ok"),
        (StandInState(stopping=True), "stopping"),
        (StandInState(StandInEngine(failed=True)), "failed"),
        (running(LONG_S, NOW_S - LONG_S), "stalled"),
        (running(LONG_S, None), "stalled"),
        (running(LONG_S, NOW_S - 1), "ok"),
        (running(1, NOW_S - LONG_S), "ok"),
    ],
)
def test_health_is_one_word(state: StandInState, status: str) -> None:
    assert health_status(state, NOW_S) == status  # type: ignore[arg-type]


def test_idle_server_is_never_stalled() -> None:
    state = StandInState(StandInEngine(now=EngineStats(last_step_s=0.0)))
    assert health_status(state, NOW_S) == "ok"  # type: ignore[arg-type]

"""GET /v1/stats: the engine's books in JSON."""

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve import __version__
from npuserve.engine.stats import EngineStats
from npuserve.server.json_reply import json_reply
from npuserve.server.state import ServerState

_SAMPLE_S = 1.0


async def get_stats(request: Request) -> Response:
    """What runs and what it has cost so far."""
    state: ServerState = request.app.state.server
    return json_reply(stats_of(state, state.engine.stats(), time.monotonic()))


async def sample_throughput(state: ServerState) -> None:
    """Look at the token counter once a second, for ever."""
    while True:
        state.throughput.sample(time.monotonic(), state.engine.stats().num_tokens_out)
        await asyncio.sleep(_SAMPLE_S)


def stats_of(state: ServerState, stats: EngineStats, now_s: float) -> dict[str, Any]:
    """The reply for `stats` at `now_s` of the monotonic clock."""
    uptime_s = max(now_s - state.started_s, 1e-9)
    return {
        "model": state.model.name,
        "backend": state.backend,
        "version": __version__,
        "uptime_s": round(uptime_s, 3),
        "context_length": state.model.context_length,
        "running": stats.num_running,
        "queued": stats.num_queued,
        "slots": _slots(stats),
        "requests": stats.num_requests,
        "tokens": {"in": stats.num_tokens_in, "cached": stats.num_tokens_cached, "out": stats.num_tokens_out},
        "tokens_per_second": {
            "last_10_s": round(state.throughput.per_second(now_s, stats.num_tokens_out), 3),
            "since_start": round(stats.num_tokens_out / uptime_s, 3),
        },
        "steps": {"done": stats.num_steps, "failed": stats.num_failed_steps},
        "device_time_share": round(stats.device_s / uptime_s, 6),
        "seconds": {
            "scheduling": round(stats.scheduling_s, 6),
            "program": round(stats.program_s, 6),
            "device": round(stats.device_s, 6),
            "sampling": round(stats.sampling_s, 6),
        },
    }


def _slots(stats: EngineStats) -> list[dict[str, Any]]:
    busy = {slot.slot: slot for slot in stats.slots}
    return [
        {"id": number, "state": "busy", "tokens": busy[number].num_tokens, "age_s": round(busy[number].age_s, 3)}
        if number in busy
        else {"id": number, "state": "idle", "tokens": 0, "age_s": 0.0}
        for number in range(stats.num_slots)
    ]

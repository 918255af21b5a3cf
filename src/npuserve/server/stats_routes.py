"""GET /v1/stats: the engine's books in JSON."""

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npuserve import __version__
from npuserve.engine.stats import EngineStats
from npuserve.server.json_reply import json_reply
from npuserve.server.state import ServerState


async def get_stats(request: Request) -> Response:
    """What runs and what it has cost so far."""
    state: ServerState = request.app.state.server
    return json_reply(stats_of(state, state.engine.stats()))


def stats_of(state: ServerState, stats: EngineStats) -> dict[str, Any]:
    """The reply for `stats`."""
    uptime_s = max(stats.uptime_s, 1e-9)
    return {
        "model": state.model.name,
        "backend": state.backend,
        "version": __version__,
        "uptime_s": round(uptime_s, 3),
        "context_length": state.model.context_length,
        "running": stats.num_running,
        "queued": stats.num_queued,
        "slots": _slots(stats),
        "kv_store": None if stats.store is None else asdict(stats.store),
        "requests": {
            "accepted": stats.num_requests,
            "cancelled": stats.num_requests_cancelled,
            "failed": stats.num_requests_failed,
        },
        "tokens": {"in": stats.num_tokens_in, "cached": stats.num_tokens_cached, "out": stats.num_tokens_out},
        "tokens_per_second": {
            "last_10_s": round(stats.tokens_out_per_s, 3),
            "prompt_last_10_s": round(stats.tokens_in_per_s, 3),
            "since_start": round(stats.num_tokens_out / uptime_s, 3),
        },
        "steps": {"done": stats.num_steps, "failed": stats.num_failed_steps},
        "device_time_share": {
            "last_10_s": round(stats.recent_device_share, 6),
            "since_start": round(stats.device_share, 6),
        },
        "seconds": {
            "scheduling": round(stats.scheduling_s, 6),
            "program": round(stats.program_s, 6),
            "device": round(stats.device_s, 6),
            "sampling": round(stats.sampling_s, 6),
        },
    }


def _slots(stats: EngineStats) -> list[dict[str, Any]]:
    known = {slot.slot: slot for slot in (*stats.warm_slots, *stats.slots)}
    empty = {"state": "empty", "tokens": 0, "age_s": 0.0}
    return [
        {"id": number, "state": slot.state, "tokens": slot.num_tokens, "age_s": round(slot.age_s, 3)}
        if (slot := known.get(number))
        else {"id": number, **empty}
        for number in range(stats.num_slots)
    ]

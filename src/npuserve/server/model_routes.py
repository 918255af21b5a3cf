"""GET /v1/models, /v1/models/{id} and /health."""

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from npuserve.server.errors import HttpError
from npuserve.server.state import ServerState
from npuserve.server.wire import ModelCard, ModelList

# A device that finished no step for this long while requests run is taken for hung.
STALLED_AFTER_S = 60.0


def _card(state: ServerState) -> ModelCard:
    model = state.model
    meta = {"n_ctx_train": model.context_length, "n_vocab": model.vocab_size}
    return ModelCard(id=model.name, created=model.created, max_model_len=model.context_length, meta=meta)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def list_models(request: Request) -> Response:
    """The one model there is."""
    return _json(ModelList(data=[_card(request.app.state.server)]))


async def get_model(request: Request) -> Response:
    """The model by name; names may hold slashes."""
    state: ServerState = request.app.state.server
    name = request.path_params["name"]
    if name != state.model.name:
        message = f"there is no model '{name[:100]}' here; the one served is '{state.model.name}'"
        raise HttpError(404, message, code="model_not_found")
    return _json(_card(state))


async def health(request: Request) -> Response:
    """200 while requests are taken and progress is made, else 503 with the reason in one word."""
    status = health_status(request.app.state.server, time.monotonic())
    return _json({"status": status}, 200 if status == "ok" else 503)


def health_status(state: ServerState, now_s: float) -> str:
    """ok, stopping, failed (the device was given up) or stalled; `now_s` is the engine's clock."""
    if state.stopping:
        return "stopping"
    if state.engine.failed:
        return "failed"
    stats = state.engine.stats()
    if stats.num_running:
        waited_s = max(slot.age_s for slot in stats.slots) if stats.slots else 0.0
        if stats.last_step_s is not None:
            waited_s = min(waited_s, now_s - stats.last_step_s)
        if waited_s > STALLED_AFTER_S:
            return "stalled"
    return "ok"

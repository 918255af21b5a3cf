"""The ASGI application: paths to handlers, errors to replies."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from npuserve.errors import NpuserveError
from npuserve.server.anthropic_messages import count_tokens, messages
from npuserve.server.chat import chat_completions
from npuserve.server.completions import completions
from npuserve.server.control_routes import abort_request, flush_cache
from npuserve.server.errors import HttpError, error_response
from npuserve.server.front import Access, Front
from npuserve.server.generate import generate
from npuserve.server.metrics import Metrics, get_metrics
from npuserve.server.model_routes import get_model, health, list_models
from npuserve.server.openapi import get_openapi
from npuserve.server.props import props
from npuserve.server.responses import responses
from npuserve.server.sse import ClientGoneError
from npuserve.server.state import Handler, ServerState
from npuserve.server.stats_routes import get_stats
from npuserve.server.text_routes import apply_template, detokenize, tokenize

_log = logging.getLogger(__name__)

ROUTES: dict[str, dict[str, Handler]] = {
    "/v1/chat/completions": {"POST": chat_completions},
    "/v1/completions": {"POST": completions},
    "/v1/responses": {"POST": responses},
    "/v1/messages": {"POST": messages},
    "/v1/messages/count_tokens": {"POST": count_tokens},
    "/generate": {"POST": generate},
    "/v1/models": {"GET": list_models},
    "/v1/models/{name:path}": {"GET": get_model},
    "/v1/stats": {"GET": get_stats},
    "/metrics": {"GET": get_metrics},
    "/openapi.json": {"GET": get_openapi},
    "/health": {"GET": health},
    "/props": {"GET": props},
    "/tokenize": {"POST": tokenize},
    "/detokenize": {"POST": detokenize},
    "/apply-template": {"POST": apply_template},
    "/flush_cache": {"POST": flush_cache},
    "/abort_request": {"POST": abort_request},
}


def create_app(state: ServerState, *, hosts: frozenset[str] | None = None) -> ASGIApp:
    """The application over `state`; starts its engine with the event loop and stops it after.

    `hosts` are the host names that requests may address, None for any; see Access.
    """
    metrics = Metrics(state.engine, state.model.name, vllm=state.settings.vllm_metrics)
    state.router.observe = metrics.observe
    paths = {**ROUTES, **state.routes}
    app = Starlette(
        routes=[Route(path, _Endpoint(path, handlers, metrics)) for path, handlers in paths.items()],
        exception_handlers={HTTPException: _unknown_path},
        lifespan=_lifespan,
    )
    app.state.server = state
    app.state.metrics = metrics
    return Front(app, Access(state.keys, hosts, state.settings.cors_origins))


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    state: ServerState = app.state.server
    state.router.bind(asyncio.get_running_loop())
    state.engine.start()
    yield
    state.stopping = True
    await asyncio.to_thread(state.engine.stop)


async def _unknown_path(request: Request, error: Exception) -> Response:
    path = request.scope["path"]
    return error_response(HttpError(404, f"there is no {path[:200]} here", code="not_found"), path)


class _Endpoint:
    """The handlers of one path by method. HEAD and OPTIONS are always there."""

    def __init__(self, path: str, handlers: Mapping[str, Handler], metrics: Metrics) -> None:
        self._path = path
        self._metrics = metrics
        self._handlers = dict(handlers)
        self._allow = ", ".join(sorted({*handlers, "HEAD", "OPTIONS"}))
        if "GET" in handlers:
            self._handlers["HEAD"] = handlers["GET"]  # the HTTP server leaves the body out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except (ClientGoneError, ClientDisconnect):
            return
        except NpuserveError as error:
            response = error_response(error, request.scope["path"])
        except Exception as error:
            _log.exception("%s %s broke", request.method, request.url.path)
            response = error_response(error, request.scope["path"])
        self._metrics.count_response(self._path, response.status_code)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        handler = self._handlers.get(request.method)
        if handler is not None:
            return await handler(request)
        if request.method in ("HEAD", "OPTIONS"):
            return Response(status_code=200 if request.method == "HEAD" else 204, headers={"Allow": self._allow})
        message = f"{request.method[:20]} is not a method of this path; it has {self._allow}"
        raise HttpError(405, message, code="method_not_allowed", headers={"Allow": self._allow})

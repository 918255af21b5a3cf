"""What holds for every request before it has a route: headers, host, origin, key, the trailing slash."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npuserve.server.errors import HttpError, error_response
from npuserve.server.keys import KeyRing, set_owner, shown_keys

MAX_HEADER_BYTES = 32 << 10
MAX_HEADERS = 256
_OPEN_PATHS = frozenset({"/health"})
_PREFLIGHT_AGE_S = 600
_EXPOSED = "retry-after, content-type"

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server.

    `hosts` are the host names that requests may address, None for any: a server bound to loopback gives its own
    names, so that a web page whose name was pointed at 127.0.0.1 cannot use it. `origins` are those whose pages may,
    with "*" for all.
    """

    keys: KeyRing
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of `origin` may send requests to `host`; a page of the server itself always may."""
        own = origin.partition("://")[2].lower() == host.lower() != ""
        return own or "*" in self.origins or origin in self.origins


class Front:
    """The application behind its checks."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path.endswith("/") and path != "/":
            path = path.rstrip("/") or "/"
        scope = {**scope, "path": path}
        origin = _header(scope["headers"], b"origin")
        if self._access.origins and origin is not None:
            send = self._with_cors(send, origin)
        early = self._preflight(scope, origin) or self._refusal(scope, origin)
        if isinstance(early, HttpError):
            early = error_response(early, path)
        await (early or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, origin: str | None) -> HttpError | None:
        """Why the request is not taken, None when it is; notes whose it is."""
        headers: Headers = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers)
        if size > MAX_HEADER_BYTES or len(headers) > MAX_HEADERS:
            message = f"{len(headers)} headers of {size} bytes; at most {MAX_HEADERS} of {MAX_HEADER_BYTES} are taken"
            return HttpError(431, message, code="headers_too_large", headers={"Connection": "close"})
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if self._access.hosts is not None and not all(_host_name(host) in self._access.hosts for host in hosts):
            message = (
                "this server is bound to loopback and does not answer to that Host; use 127.0.0.1 or localhost, or"
                " start it with --allow-host"
            )
            return HttpError(403, message, code="host_not_allowed")
        if origin is not None and scope["method"] == "POST":
            host = hosts[0] if hosts else ""
            if not self._access.allows_origin(origin, host):
                message = "pages of that origin may not use this server; start it with --cors-origin to let them"
                return HttpError(403, message, code="origin_not_allowed")
        return self._check_key(scope)

    def _check_key(self, scope: Scope) -> HttpError | None:
        keys = self._access.keys
        if not keys or scope["path"] in _OPEN_PATHS:
            return None
        shown = shown_keys(scope["headers"])
        owner = keys.owner(shown)
        if owner is not None:
            set_owner(scope, owner)
            return None
        message = (
            "the API key is wrong" if shown else "an API key is needed: send Authorization: Bearer KEY or x-api-key"
        )
        return HttpError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _preflight(self, scope: Scope, origin: str | None) -> Response | None:
        """The answer to a browser's question whether a page may send a request; it carries no key."""
        wanted = _header(scope["headers"], b"access-control-request-method")
        if scope["method"] != "OPTIONS" or origin is None or wanted is None or not self._access.origins:
            return None
        asked = _header(scope["headers"], b"access-control-request-headers") or ""
        if len(asked) > 1024 or not asked.isprintable():
            asked = ""
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, HEAD, OPTIONS",
            "Access-Control-Allow-Headers": asked or "authorization, content-type, x-api-key",
            "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
        }
        return Response(status_code=204, headers=headers)

    def _with_cors(self, send: Send, origin: str) -> Send:
        """`send` that tells the browser to let a page of `origin` read the reply, when it may."""
        extra: Mapping[bytes, bytes] = {b"vary": b"Origin"}
        if "*" in self._access.origins:
            extra = {b"access-control-allow-origin": b"*", b"access-control-expose-headers": _EXPOSED.encode()}
        elif origin in self._access.origins:
            extra = {
                **extra,
                b"access-control-allow-origin": origin.encode("latin-1"),
                b"access-control-expose-headers": _EXPOSED.encode(),
            }

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *extra.items()]}
            await send(message)

        return sending


def _header(headers: Headers, wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name == wanted), None)


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0][1:].lower()
    return host.partition(":")[0].lower()

"""Our errors as HTTP: a status, the OpenAI error object, headers."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from npuserve.errors import DeviceError, NpuserveError, OverloadedError, RequestError
from npuserve.server.wire import ErrorBody, ErrorDetail


class UnbuiltFieldError(RequestError):
    """The request asks for what this server cannot do yet; ignoring the field would give a wrong reply."""

    def __init__(self, param: str, what: str | None = None) -> None:
        super().__init__(
            f"{what or param} is not supported by this server yet; leave it out", param=param, code="unsupported"
        )


class HttpError(NpuserveError):
    """A request that HTTP itself refuses: wrong route, method or size."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class _Told:
    """How one error is told to a client."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None


def _told(error: BaseException) -> _Told:
    """Most specific first. A fault of our own keeps its text to itself."""
    match error:
        case HttpError():
            return _Told(error.status, "invalid_request_error", str(error), None, error.code)
        case RequestError():
            return _Told(400, "invalid_request_error", str(error), error.param, error.code)
        case OverloadedError():
            return _Told(503, "server_error", str(error), None, error.code)
        case DeviceError():
            return _Told(500, "server_error", str(error), None, "device_error")
        case _:
            return _Told(
                500, "server_error", "the server broke on a fault of its own; see its log", None, "internal_error"
            )


def error_json(error: BaseException) -> bytes:
    """`{"error": {message, type, param, code}}`, the body of a reply or the data of a last event."""
    told = _told(error)
    detail = ErrorDetail(message=told.message, type=told.type, param=told.param, code=told.code)
    return msgspec.json.encode(ErrorBody(error=detail))


def error_response(error: BaseException) -> Response:
    """The whole reply to a request that failed before its first byte."""
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(error.retry_after_s)
    return Response(error_json(error), _told(error).status, headers, "application/json")

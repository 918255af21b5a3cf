"""Our errors as HTTP: a status, the error object of OpenAI or Anthropic, headers."""

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


# Anthropic's word for the kind of an error, by status; its clients choose their exception by the status.
_MESSAGES_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
MESSAGES_PATH = "/v1/messages"


def error_detail(error: BaseException) -> ErrorDetail:
    """What a client is told of `error`."""
    told = _told(error)
    return ErrorDetail(message=told.message, type=told.type, param=told.param, code=told.code)


def error_json(error: BaseException) -> bytes:
    """`{"error": {message, type, param, code}}`, the body of a reply or the data of a last event."""
    return msgspec.json.encode(ErrorBody(error=error_detail(error)))


def messages_error_json(error: BaseException) -> bytes:
    """The same in the words of Anthropic's API; the path of the wrong field goes before the message."""
    told = _told(error)
    kind = _MESSAGES_KINDS.get(told.status, "invalid_request_error" if told.status < 500 else "api_error")
    named = told.param is None or told.param in told.message
    message = told.message if named else f"{told.param}: {told.message}"
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def error_response(error: BaseException, path: str = "") -> Response:
    """The whole reply to a request for `path` that failed before its first byte."""
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(error.retry_after_s)
    body = messages_error_json(error) if path.startswith(MESSAGES_PATH) else error_json(error)
    return Response(body, _told(error).status, headers, "application/json")

import json

import pytest

from npuserve import errors
from npuserve.server.errors import HttpError, UnbuiltFieldError, error_json, error_response


def made(kind: type[errors.NpuserveError]) -> errors.NpuserveError:
    return kind(10, 5) if kind is errors.ContextLengthError else kind("a sentence")


def every_error() -> list[type[errors.NpuserveError]]:
    kinds = [errors.NpuserveError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return [kind for kind in kinds if kind.__module__ == "npuserve.errors"]


@pytest.mark.parametrize("kind", every_error())
def test_every_error_has_a_status_and_the_openai_shape(kind: type[errors.NpuserveError]) -> None:
    error = made(kind)
    reply = error_response(error)
    statuses = {errors.RequestError: 400, errors.OverloadedError: 503}
    assert reply.status_code == next((status for base, status in statuses.items() if isinstance(error, base)), 500)
    assert set(json.loads(bytes(reply.body))["error"]) == {"message", "type", "param", "code"}


def test_fault_of_our_own_keeps_its_text_to_itself() -> None:
    body = error_json(ZeroDivisionError("secret"))
    assert b"secret" not in body
    assert json.loads(body)["error"]["code"] == "internal_error"


def test_overload_says_when_to_come_back() -> None:
    assert error_response(errors.OverloadedError("full", retry_after_s=7)).headers["retry-after"] == "7"


def test_http_error_brings_its_headers() -> None:
    reply = error_response(HttpError(405, "no", code="x", headers={"Allow": "GET"}))
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET")


def test_unbuilt_field_is_named() -> None:
    assert json.loads(error_json(UnbuiltFieldError("n")))["error"] == {
        "message": "n is not supported by this server yet; leave it out",
        "type": "invalid_request_error",
        "param": "n",
        "code": "unsupported",
    }

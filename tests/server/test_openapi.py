"""The described interface is the one that is served."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from live_server import Script, Served, null_state, serving
from npuserve.server.app import ROUTES
from npuserve.server.openapi import description
from patience import WAIT_S

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script({"": "ok"}))) as served:
        yield served


def test_every_route_is_described_with_its_methods(served: Served) -> None:
    paths = httpx.get(f"{served.url}/openapi.json").json()["paths"]
    described = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    served_here = {
        (path.replace("{name:path}", "{name}"), method) for path, methods in ROUTES.items() for method in methods
    }
    assert described == served_here


def operations() -> list[tuple[str, str]]:
    return [(path, method) for path, methods in description()["paths"].items() for method in methods]


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("path", "method"), operations())
def test_server_does_what_the_description_says(served: Served, path: str, method: str, mode: GenerationMode) -> None:
    operation = schemathesis.openapi.from_dict(description())[path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        case.call_and_validate(base_url=served.url, checks=CHECKS, timeout=WAIT_S)

    try:
        check()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "nothing can be sent"

from typing import Any

import pytest

from npuserve.server.template_switches import read_switches
from npuserve.text.chat_template import ChatTemplate

TEMPLATE = ChatTemplate("{{ messages }}{{ xml_tools }}")


def switches(*, think: bool = False, **body: Any) -> dict[str, Any]:
    return read_switches(body, TEMPLATE, think=think)


@pytest.mark.parametrize("think", [False, True])
def test_servers_default_reaches_the_template(think: bool) -> None:
    assert switches(think=think) == {"enable_thinking": think, "thinking": think}


@pytest.mark.parametrize(
    ("effort", "thinking"), [("none", False), ("minimal", False), ("low", True), ("medium", True), ("high", True)]
)
def test_effort_is_passed_on_and_tells_whether_to_think(effort: str, thinking: bool) -> None:
    expected = {"enable_thinking": thinking, "thinking": thinking, "reasoning_effort": effort}
    assert switches(reasoning_effort=effort) == expected


def test_the_more_explicit_switch_wins() -> None:
    assert switches(reasoning_effort="high", enable_thinking=False)["enable_thinking"] is False
    given = {"enable_thinking": True, "xml_tools": [1]}
    made = switches(enable_thinking=False, chat_template_kwargs=given)
    assert made["enable_thinking"] is True
    assert made["xml_tools"] == [1]

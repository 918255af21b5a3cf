"""LangChain and LiteLLM as their users call them (`pip install '.[clients]'`)."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from calling_model import REPLIES, TEMPLATE
from live_server import Script as ModelScript
from live_server import Served, null_state, serving
from npuserve.server.keys import KeyRing

# Of their own making, in code that we do not call.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    state = null_state(ModelScript(REPLIES), template=TEMPLATE, context_length=4096, keys=KeyRing(["alpha"]))
    with serving(state) as served:
        yield served


@pytest.fixture(scope="module")
def chat(served: Served) -> Any:
    langchain = pytest.importorskip("langchain_openai", reason="LangChain is not installed: pip install '.[clients]'")
    return langchain.ChatOpenAI(base_url=f"{served.url}/v1", api_key="alpha", model="tiny", max_retries=0)


def test_langchain_invokes_and_streams(chat: Any) -> None:
    asked = [("system", "Be brief."), ("human", "What is the capital?")]
    reply = chat.invoke(asked)
    assert reply.content == "Paris it is."
    assert reply.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream(asked)) == "Paris it is."


def test_langchain_calls_a_tool_and_passes_its_result_back(chat: Any) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    asked = messages.HumanMessage("weather in Paris?")
    bound = chat.bind_tools([WEATHER])
    called = bound.invoke([asked])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    streamed: Any = None
    for chunk in bound.stream([asked]):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == {"city": "Paris"}
    assert bound.invoke([asked, called, messages.ToolMessage("sun", tool_call_id=call["id"])]).content == "It is sunny."


def test_langchain_gets_structured_output(chat: Any) -> None:
    schema = {
        "title": "answer",
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
    answer = chat.with_structured_output(schema, method="json_schema").invoke("Is it?")
    assert set(answer) == {"yes"}


@pytest.fixture(scope="module")
def litellm(served: Served) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("litellm", reason="LiteLLM is not installed: pip install '.[clients]'")
    module.telemetry = False
    return module


def test_litellm_completes_and_streams(served: Served, litellm: Any) -> None:
    asked: dict[str, Any] = {
        "model": "openai/tiny",
        "api_base": f"{served.url}/v1",
        "api_key": "alpha",
        "messages": [{"role": "user", "content": "What is the capital?"}],
        "max_retries": 0,
    }
    assert litellm.completion(**asked).choices[0].message.content == "Paris it is."
    chunks = list(litellm.completion(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Paris it is."
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**asked, "api_key": "wrong"})


def test_litellm_speaks_anthropics_api(served: Served, litellm: Any) -> None:
    reply = litellm.completion(
        model="anthropic/tiny",
        api_base=served.url,
        api_key="alpha",
        max_tokens=100,
        messages=[{"role": "user", "content": "weather in Paris?"}],
        tools=[WEATHER],
        max_retries=0,
    )
    assert reply.choices[0].message.tool_calls[0].function.name == "get_weather"

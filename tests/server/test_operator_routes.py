"""Statistics, metrics, properties, flushing and aborting."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from live_server import Script, Served, null_state, serving
from npuserve.devices.null import NullDevice
from npuserve.kvstore.settings import KvSettings
from npuserve.kvstore.store import ContextStore
from npuserve.server.keys import KeyRing
from npuserve.server.state import HttpSettings
from patience import WAIT_S

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
ENDLESS: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}], "stream": True}


@pytest.fixture
def served() -> Iterator[Served]:
    script = Script({"": "for ever "}, endless=True)
    with serving(null_state(script, step_delay_s=0.002, context_length=100_000)) as served:
        yield served


@contextmanager
def endless_stream(served: Served, **headers: str) -> Iterator[tuple[str, Iterator[str]]]:
    """A stream that runs inside the block and has said something: its id and the lines that follow."""
    with httpx.stream("POST", served.url + CHAT, json=ENDLESS, headers=headers) as stream:
        lines = (line for line in stream.iter_lines() if line)
        name = json.loads(next(lines).removeprefix("data: "))["id"]
        while '"content":"f' not in next(lines):
            pass
        yield name, lines


def test_stats_tell_what_runs(served: Served) -> None:
    httpx.post(served.url + CHAT, json=HELLO)
    with endless_stream(served):
        stats = httpx.get(f"{served.url}/v1/stats").json()
    assert (stats["model"], stats["running"], stats["queued"], stats["requests"]["accepted"]) == ("tiny", 1, 0, 2)
    assert {slot["state"] for slot in stats["slots"]} >= {"decode", "empty"}
    assert stats["tokens"]["out"] >= 3
    assert stats["tokens_per_second"]["since_start"] > 0
    assert 0 < stats["device_time_share"]["since_start"] <= 1
    assert stats["kv_store"] is None


def test_metrics_are_prometheus_text_with_the_engines_counts() -> None:
    with serving(null_state(Script({"": "ok then"}), http=HttpSettings(vllm_metrics=True))) as served:
        httpx.post(served.url + CHAT, json=HELLO)
        httpx.post(served.url + CHAT, content=b"{")
        reply = httpx.get(f"{served.url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("status", "")): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }
    assert samples["npuserve_requests_total", ""] == samples["npuserve_reply_seconds_count", ""] == 1
    assert samples["npuserve_http_responses_total", "200"] == samples["npuserve_http_responses_total", "400"] == 1
    assert samples["vllm:generation_tokens_total", ""] == samples["npuserve_generated_tokens_total", ""] > 0
    assert samples["vllm:time_to_first_token_seconds_count", ""] == 1
    assert samples["vllm:num_requests_running", ""] == 0


def test_metrics_have_no_foreign_names_unless_asked_for(served: Served) -> None:
    assert "vllm:" not in httpx.get(f"{served.url}/metrics").text


def test_props_tell_the_template_and_the_defaults(served: Served) -> None:
    props = httpx.get(f"{served.url}/props").json()
    assert "<|im_start|>" in props["chat_template"]
    assert (props["total_slots"], props["default_generation_settings"]["params"]["temperature"]) == (8, 0.0)


def test_store_is_told_and_flushed_by_tier() -> None:
    can = NullDevice().capabilities
    store = ContextStore(KvSettings(ram_bytes=1 << 20), "tiny", can.page_format)
    with serving(null_state(Script({"": "ok"}), store=store, context_length=2048)) as served:
        body = {**HELLO, "messages": [{"role": "user", "content": "the quick brown fox " * 40}]}
        httpx.post(served.url + CHAT, json=body)
        assert eventually(lambda: httpx.get(f"{served.url}/v1/stats").json()["kv_store"]["ram"]["entries"] > 0)
        metrics = httpx.get(f"{served.url}/metrics").text
        assert re.search(r'^npuserve_kv_entries{tier="ram"} [1-9]', metrics, re.MULTILINE)
        assert httpx.post(f"{served.url}/flush_cache?tier=ram").status_code == 200
        assert httpx.get(f"{served.url}/v1/stats").json()["kv_store"]["ram"]["entries"] == 0


def cached_tokens(url: str) -> int:
    body = {**HELLO, "messages": [{"role": "user", "content": "the quick brown fox " * 10}]}
    usage = httpx.post(url + CHAT, json=body).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_flush_forgets_what_slots_hold_at_once_after_a_reply(served: Served) -> None:
    cached_tokens(served.url)
    assert cached_tokens(served.url) > 0
    for _ in range(20):
        assert httpx.post(f"{served.url}/flush_cache").status_code == 200
        assert cached_tokens(served.url) == 0


def test_flush_is_refused_while_a_request_runs_and_waits_when_told_to(served: Served) -> None:
    with endless_stream(served) as (name, _):
        for query in ("", "?timeout=0.05"):
            refused = httpx.post(f"{served.url}/flush_cache{query}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "server_busy")
        waiting: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: waiting.append(httpx.post(f"{served.url}/flush_cache?timeout=100")))
        thread.start()
        httpx.post(f"{served.url}/abort_request", json={"rid": name})
        thread.join(WAIT_S)
    assert waiting[0].status_code == 200


@pytest.mark.parametrize("query", ["timeout=x", "timeout=-1", "timeout=nan", "timeout=1e9", "tier=tape", "what=1"])
def test_flush_checks_its_parameters(served: Served, query: str) -> None:
    reply = httpx.post(f"{served.url}/flush_cache?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize("by", ["rid", "all", "abort_all"])
def test_abort_ends_a_running_stream_with_an_error(served: Served, by: str) -> None:
    with endless_stream(served) as (name, lines):
        body = {"rid": name} if by == "rid" else {by: True}
        assert httpx.post(f"{served.url}/abort_request", json=body).json() == {"success": True, "aborted": 1}
        last = list(lines)[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled"
    assert httpx.post(f"{served.url}/abort_request", json=body).json()["aborted"] == 0


def test_abort_needs_to_know_what(served: Served) -> None:
    for body in ({}, {"all": False}, {"rid": ""}, {"rid": 5}):
        assert httpx.post(f"{served.url}/abort_request", json=body).status_code == 400


def test_nobody_aborts_what_another_key_asked_for() -> None:
    state = null_state(
        Script({"": "for ever "}, endless=True),
        step_delay_s=0.002,
        context_length=100_000,
        keys=KeyRing(["alpha", "beta"]),
    )
    with serving(state) as served, endless_stream(served, **{"x-api-key": "alpha"}) as (name, lines):
        for body in ({"rid": name}, {"all": True}):
            reply = httpx.post(f"{served.url}/abort_request", json=body, headers={"x-api-key": "beta"})
            assert reply.json()["aborted"] == 0
        assert next(lines)
        reply = httpx.post(f"{served.url}/abort_request", json={"all": True}, headers={"x-api-key": "alpha"})
        assert reply.json()["aborted"] == 1


def eventually(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.005)
    return True


@pytest.mark.parametrize("stream", [True, False])
def test_request_is_ended_at_its_deadline(stream: bool) -> None:
    state = null_state(
        Script({"": "for ever "}, endless=True),
        step_delay_s=0.002,
        context_length=100_000,
        http=HttpSettings(request_timeout_s=0.2),
    )
    with serving(state) as served:
        reply = httpx.post(served.url + CHAT, json={**ENDLESS, "stream": stream})
        error = json.loads(reply.text.strip().rpartition("\n")[2].removeprefix("data: "))["error"]
        assert error["code"] == "request_timeout"
        assert reply.status_code == (200 if stream else 408)
        assert eventually(lambda: state.engine.stats().num_running == 0)

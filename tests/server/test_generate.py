"""SGLang's native call."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from brake import Brake
from live_server import END_OF_TURN, Script, Served, null_state, serving

REPLIES: dict[str, str | list[int]] = {"fox": "jumps over", "France": "Paris, of course"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script(REPLIES), step_delay_s=0.001)) as served:
        yield served


def post(served: Served, **body: Any) -> Any:
    reply = httpx.post(f"{served.url}/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(served: Served, **body: Any) -> list[dict[str, Any]]:
    reply = httpx.post(f"{served.url}/generate", json={**body, "stream": True})
    return decoded(reply.text.strip().split("\n\n"))


def decoded(lines: list[str]) -> list[dict[str, Any]]:
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_text_gives_text_and_the_ids_generated_alone(served: Served) -> None:
    made = post(served, text="the quick brown fox")
    ids = served.tokenizer.encode_plain("jumps over")
    assert (made["text"], made["output_ids"]) == ("jumps over", [*ids, END_OF_TURN])
    facts = made["meta_info"]
    assert facts["finish_reason"] == {"type": "stop", "matched": END_OF_TURN}
    assert facts["completion_tokens"] == len(made["output_ids"])
    assert facts["prompt_tokens"] == len(served.tokenizer.encode_prompt("the quick brown fox"))


def test_input_ids_are_the_same_as_their_text(served: Served) -> None:
    ids = served.tokenizer.encode_prompt("the quick brown fox")
    assert post(served, input_ids=ids)["text"] == "jumps over"


@pytest.mark.parametrize("name", ["text", "input_ids"])
def test_batch_is_a_list_in_order_be_it_of_one(served: Served, name: str) -> None:
    texts = ["What is France?", "the fox"]
    prompts: list[Any] = texts if name == "text" else [served.tokenizer.encode_prompt(text) for text in texts]
    assert [made["text"] for made in post(served, **{name: prompts})] == ["Paris, of course", "jumps over"]
    assert [made["text"] for made in post(served, **{name: prompts[:1]})] == ["Paris, of course"]


def test_stream_is_cumulative_and_ends_as_the_whole_reply_does() -> None:
    brake, body = Brake(), {"text": "France", "rid": "mine", "stream": True}
    brake.halt_after(4)
    with serving(null_state(Script(REPLIES), brake=brake)) as served:
        with httpx.stream("POST", f"{served.url}/generate", json=body) as stream:
            lines = (line for line in stream.iter_lines() if line)
            first = next(lines)
            brake.wait_until_halted()
            brake.release()
            chunks = decoded([first, *lines])
        whole = post(served, text="France", rid="mine")
    assert 0 < len(chunks[0]["output_ids"]) <= 4
    for before, after in pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    assert [chunk["meta_info"]["finish_reason"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert {key: chunks[-1][key] for key in ("text", "output_ids")} == {
        key: whole[key] for key in ("text", "output_ids")
    }
    assert chunks[-1]["meta_info"]["id"] == whole["meta_info"]["id"] == "mine"


def test_streamed_batch_tells_its_chunks_apart(served: Served) -> None:
    last: dict[int, str] = {}
    for chunk in events(served, text=["France", "fox"]):
        last[chunk["index"]] = chunk["text"]
    assert last == {0: "Paris, of course", 1: "jumps over"}


def test_sampling_params_hold_and_the_reason_of_the_end_is_told(served: Served) -> None:
    made = post(served, text="France", sampling_params={"max_new_tokens": 2})
    assert made["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert len(made["output_ids"]) == 2
    made = post(served, text="France", sampling_params={"stop": [" of"]})
    assert (made["text"], made["meta_info"]["finish_reason"]) == ("Paris,", {"type": "stop", "matched": " of"})
    assert made["meta_info"]["completion_tokens"] == len(made["output_ids"])
    made = post(served, text="France", sampling_params={"stop": [" of"], "no_stop_trim": True})
    assert made["text"] == "Paris, of"


def test_log_probabilities_come_with_ids(served: Served) -> None:
    made = post(
        served,
        text="France",
        return_logprob=True,
        top_logprobs_num=2,
        logprob_start_len=0,
        return_text_in_logprobs=True,
    )
    facts = made["meta_info"]
    assert [entry[1] for entry in facts["output_token_logprobs"]] == made["output_ids"]
    assert all(len(top) == 2 for top in facts["output_top_logprobs"])
    assert facts["output_top_logprobs"][0][0][2] == served.tokenizer.token_bytes[made["output_ids"][0]].decode()
    assert facts["input_token_logprobs"][0][0] is None
    assert [entry[1] for entry in facts["input_token_logprobs"]] == served.tokenizer.encode_prompt("France")
    assert "output_token_logprobs" not in post(served, text="France")["meta_info"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": 5}, "text"),
        ({"text": ["a", 5]}, "text[1]"),
        ({"text": []}, "text"),
        ({"input_ids": "a"}, "input_ids"),
        ({"input_ids": [1, -1]}, "input_ids[1]"),
        ({"input_ids": [[1], "a"]}, "input_ids[1]"),
        ({"text": "a", "sampling_params": [1]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"temperature": 9}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"regex": "("}}, "sampling_params.regex"),
        ({"text": "a", "rid": 5}, "rid"),
        ({"text": "a", "rid": "x" * 257}, "rid"),
        ({"text": "a", "top_logprobs_num": 99}, "top_logprobs_num"),
        ({"text": "a", "image_data": "data:"}, "image_data"),
    ],
)
def test_wrong_field_is_named(served: Served, body: dict[str, Any], param: str) -> None:
    reply = httpx.post(f"{served.url}/generate", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_live_rid_is_taken_and_aborting_it_frees_it() -> None:
    state = null_state(Script({"": "for ever "}, endless=True), step_delay_s=0.002, context_length=100_000)
    body = {"text": "go", "rid": "mine", "stream": True, "sampling_params": {"max_new_tokens": 90_000}}
    with serving(state) as served:
        for _ in range(2):
            with httpx.stream("POST", f"{served.url}/generate", json=body) as stream:
                lines = (line for line in stream.iter_lines() if line)
                assert '"id":"mine"' in next(lines)
                again = httpx.post(f"{served.url}/generate", json=body)
                assert (again.status_code, again.json()["error"]["code"]) == (409, "duplicate_rid")
                aborted = httpx.post(f"{served.url}/abort_request", json={"rid": "mine"})
                assert aborted.json()["aborted"] == 1
                assert json.loads(list(lines)[-1].removeprefix("data: "))["error"]["code"] == "cancelled"

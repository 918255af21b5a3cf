"""[llm] sampling = host: the NPU gives logits, this server chooses the tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from kiln.fake_runtime import LAYOUTS, write_model
from kiln.kiln_server import kiln_in_process, write_config
from live_server import END_OF_TURN, Served
from npuserve.core import Row
from npuserve.devices.rkllm import RkllmSettings
from npuserve.devices.rkllm_logits import RkllmLogitsDevice
from npuserve.errors import DeviceError
from tiny_tokenizer import tiny_tokenizer

REPLY = "The capital of France is Paris."
VOCAB = tiny_tokenizer().get_vocab_size()


def said(text: str) -> list[tuple[int, str | bytes]]:
    """The scripted logits' tokens: those of `text`, then the end of the turn."""
    ids = tiny_tokenizer().encode(text, add_special_tokens=False).ids
    return [(token, "") for token in [*ids, END_OF_TURN]]


@pytest.fixture(params=LAYOUTS)
def device(
    request: pytest.FixtureRequest, runtime_of: Callable[[str], Path], tmp_path: Path
) -> Iterator[RkllmLogitsDevice]:
    model = write_model(tmp_path / "m.rkllm", log=tmp_path / "log", vocab=500)
    made = RkllmLogitsDevice(RkllmSettings(model, str(runtime_of(request.param)), request.param, context_length=256))
    yield made
    made.close()


def rows(tokens: list[int], start: int = 0) -> list[Row]:
    return [Row(0, start + i, token, i == len(tokens) - 1) for i, token in enumerate(tokens)]


def expected(tokens: list[int]) -> int:
    """The fake runtime's most likely token after `tokens`."""
    value = 1
    for token in tokens:
        value = (value * 31 + token + 1) & 0xFFFFFFFF
    return value % 500


def test_logits_follow_from_the_whole_history(device: RkllmLogitsDevice) -> None:
    assert device.capabilities.vocab_size == 500
    history = [3, 1, 4, 1, 5]
    logits = device.step(rows(history)).logits
    for _ in range(20):
        assert logits.shape == (1, 500)
        assert int(logits[0].argmax()) == expected(history)
        history.append(int(logits[0].argmax()))
        logits = device.step(rows(history[-1:], len(history) - 1)).logits


def test_a_prompt_may_be_cut_anywhere_and_a_new_one_begins_at_0(device: RkllmLogitsDevice) -> None:
    device.step(rows([9, 9, 9]))
    device.step([Row(0, 0, 7, False), Row(0, 1, 8, False)])
    assert int(device.step(rows([9], 2)).logits[0].argmax()) == expected([7, 8, 9])


def test_positions_that_do_not_follow_are_refused(device: RkllmLogitsDevice) -> None:
    device.step(rows([1, 2]))
    with pytest.raises(ValueError, match="cannot go on at 1"):
        device.step(rows([3], 1))


def test_contexts_cannot_be_saved(device: RkllmLogitsDevice) -> None:
    assert device.capabilities.page_bytes == 0
    with pytest.raises(DeviceError, match="cannot be saved"):
        device.save(0, 0)


@pytest.fixture(params=LAYOUTS)
def served(request: pytest.FixtureRequest, runtime_of: Callable[[str], Path], tmp_path: Path) -> Iterator[Served]:
    model = write_model(tmp_path / "models" / "tiny.rkllm", said(REPLY), log=tmp_path / "log", vocab=VOCAB)
    tiny_tokenizer().save(str(model.parent / "tokenizer.json"))
    llm = {"model": model, "library": runtime_of(request.param), "sampling": "host", "repeat_penalty": 1}
    with kiln_in_process(write_config(tmp_path / "config.ini", llm=llm)) as served:
        yield served


def test_replies_logprobs_bias_and_penalties_work(served: Served, tmp_path: Path) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        ask = {"model": "x", "messages": [{"role": "user", "content": "France?"}]}
        reply = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, seed=5)  # type: ignore[call-overload]
        assert reply.choices[0].message.content == REPLY
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage.completion_tokens == len(said(REPLY))
        entries = reply.choices[0].logprobs.content
        assert "".join(entry.token for entry in entries).startswith("The")
        assert all(entry.logprob > -0.01 for entry in entries)
        first = said(REPLY)[0][0]
        biased = client.chat.completions.create(**ask, max_tokens=1, logit_bias={str(first): -100})  # type: ignore[call-overload]
        assert biased.choices[0].message.content != reply.choices[0].message.content[:3]
    assert "VIOLATION" not in (tmp_path / "log").read_text()


def test_structured_output_is_enforced_on_the_npu(served: Served) -> None:
    body = {
        "messages": [{"role": "user", "content": "France?"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"enum": ["Paris"]}, "strict": True},
        },
    }
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == '"Paris"'


def test_a_seed_repeats_a_sampled_reply(runtime_of: Callable[[str], Path], tmp_path: Path) -> None:
    model = write_model(tmp_path / "models" / "tiny.rkllm", vocab=VOCAB)
    tiny_tokenizer().save(str(model.parent / "tokenizer.json"))
    llm = {"model": model, "library": runtime_of("1.2"), "sampling": "host"}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 5,
        "top_k": 60,
        "max_tokens": 30,
        "seed": 7,
        "ignore_eos": True,
    }
    with kiln_in_process(write_config(tmp_path / "config.ini", llm=llm)) as served:
        texts = [
            httpx.post(f"{served.url}/v1/chat/completions", json={**body, "seed": seed}, timeout=60).json()["choices"][
                0
            ]["message"]
            for seed in (7, 7, 8)
        ]
    assert texts[0] == texts[1] != texts[2]


def test_logits_that_are_not_finite_fail_the_request(runtime_of: Callable[[str], Path], tmp_path: Path) -> None:
    model = write_model(tmp_path / "models" / "tiny.rkllm", vocab=VOCAB, nan_logits=1)
    tiny_tokenizer().save(str(model.parent / "tokenizer.json"))
    llm = {"model": model, "library": runtime_of("1.2"), "sampling": "host"}
    with kiln_in_process(write_config(tmp_path / "config.ini", llm=llm)) as served:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        reply = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 500
    assert "not finite" in reply.json()["error"]["message"]

"""Log probabilities through the official client: chat and completions, streamed and whole, with the prompt's own."""

import math
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from live_server import Script, Served, null_state, serving

REPLIES: dict[str, str | list[int]] = {
    "France": "Paris of course",
    "count": "one two STOP four",
    "emoji": "Zürich 東京 😀 ok",
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script(REPLIES))) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, text: str, *, stream: bool, **options: Any) -> tuple[str, list[Any]]:
    """The reply's text and its entries."""
    arguments = {"model": "tiny", "messages": [{"role": "user", "content": text}], "logprobs": True, **options}
    if not stream:
        choice = client.chat.completions.create(**arguments).choices[0]
        return choice.message.content or "", choice.logprobs.content or []
    pieces: list[str] = []
    entries: list[Any] = []
    for chunk in client.chat.completions.create(**arguments, stream=True):
        pieces.append(chunk.choices[0].delta.content or "")
        if chunk.choices[0].logprobs is not None:
            entries += chunk.choices[0].logprobs.content or []
    return "".join(pieces), entries


@pytest.mark.parametrize("stream", [False, True])
def test_chat_entries_cover_the_text_and_name_the_chosen_token(client: openai.OpenAI, stream: bool) -> None:
    text, entries = chat(client, "France", stream=stream, top_logprobs=3)
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text == "Paris of course"
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert entry.top_logprobs[0].token == entry.token
        assert all(later.logprob < entry.logprob <= 0 for later in entry.top_logprobs[1:])


def test_chat_entries_without_top_ones(client: openai.OpenAI) -> None:
    _, entries = chat(client, "France", stream=False)
    assert entries
    assert all(entry.top_logprobs == [] for entry in entries)


@pytest.mark.parametrize("stream", [False, True])
def test_characters_split_over_tokens_have_their_bytes(client: openai.OpenAI, served: Served, stream: bool) -> None:
    text, entries = chat(client, "emoji", stream=stream, top_logprobs=1)
    assert text == "Zürich 東京 😀 ok"
    assert len(entries) == len(served.tokenizer.encode_plain(text))
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text


@pytest.mark.parametrize("stream", [False, True])
def test_entries_end_with_the_text_before_a_stop_string(client: openai.OpenAI, stream: bool) -> None:
    text, entries = chat(client, "count", stream=stream, stop=["STOP"])
    assert text == "one two "
    covered = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert covered.startswith(text)
    assert len(b"".join(bytes(entry.bytes) for entry in entries[:-1])) < len(text)


@pytest.mark.parametrize("text", ["France", "count", "emoji"])
def test_streamed_entries_are_the_whole_ones(client: openai.OpenAI, text: str) -> None:
    options: dict[str, Any] = {"top_logprobs": 2, "stop": ["京 ", "ST"]}
    assert chat(client, text, stream=True, **options) == chat(client, text, stream=False, **options)


def test_no_chunk_has_entries_that_were_not_asked_for(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "France"}])
    assert reply.choices[0].logprobs is None


def complete(client: openai.OpenAI, *, stream: bool = False, **options: Any) -> tuple[str, Any]:
    """The choice's text and its lists."""
    if not stream:
        choice = client.completions.create(model="tiny", **options).choices[0]
        return choice.text, choice.logprobs
    text, lists = "", None
    for chunk in client.completions.create(model="tiny", stream=True, **options):
        text += chunk.choices[0].text
        own = chunk.choices[0].logprobs
        if lists is None:
            lists = own
        elif own is not None:
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                getattr(lists, name).extend(getattr(own, name))
    return text, lists


@pytest.mark.parametrize("stream", [False, True])
def test_completion_lists_are_parallel_and_offsets_point_into_the_text(client: openai.OpenAI, stream: bool) -> None:
    text, lists = complete(client, stream=stream, prompt="in France", max_tokens=40, logprobs=2)
    assert text == "Paris of course"
    assert lists.tokens[-1] == "<|im_end|>"  # the token that ended it was generated too
    for token, offset in zip(lists.tokens[:-1], lists.text_offset, strict=False):
        assert text[offset:].startswith(token)
    for token, logprob, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())


@pytest.mark.parametrize("stream", [False, True])
def test_echo_gives_the_prompts_entries_first(client: openai.OpenAI, served: Served, stream: bool) -> None:
    prompt = "Zürich in France"
    num_prompt = len(served.tokenizer.encode_prompt(prompt))
    text, lists = complete(client, stream=stream, prompt=prompt, max_tokens=2, logprobs=1, echo=True)
    assert text.startswith(prompt)
    assert len(lists.tokens) == num_prompt + 2
    assert (lists.token_logprobs[0], lists.top_logprobs[0]) == (None, None)
    assert all(value <= 0 for value in lists.token_logprobs[1:])
    assert lists.text_offset[0] == 0
    assert lists.text_offset[num_prompt] == len(prompt)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_loglikelihood_of_a_continuation_as_evaluation_harnesses_ask_for_it(
    client: openai.OpenAI, served: Served, max_tokens: int
) -> None:
    """They send token ids of context and continuation, and sum the entries of the latter."""
    context = served.tokenizer.encode_prompt("it is in France")
    said = served.tokenizer.encode_plain("Paris of course")
    lists = complete(client, prompt=[*context, *said], max_tokens=max_tokens, logprobs=1, echo=True, temperature=0)[1]
    end = -1 if max_tokens else None
    logprobs, tops = lists.token_logprobs[len(context) : end], lists.top_logprobs[len(context) : end]
    assert len(logprobs) == len(said)
    assert all(token == max(top, key=top.get) for token, top in zip(lists.tokens[len(context) :], tops, strict=False))
    likely = sum(logprobs)
    wrong = served.tokenizer.encode_plain("brown fox jumps")
    lists = complete(client, prompt=[*context, *wrong], max_tokens=max_tokens, logprobs=1, echo=True)[1]
    assert sum(lists.token_logprobs[len(context) : len(context) + len(wrong)]) < likely - 10


def test_prompt_entries_are_the_same_from_a_warm_slot(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"prompt": "a warm place in France", "max_tokens": 1, "logprobs": 3, "echo": True}
    first = complete(client, **options)[1]
    assert complete(client, **options)[1] == first


def test_nothing_generated_is_nothing_counted(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny", prompt="in France", max_tokens=0, logprobs=1, echo=True)
    assert reply.choices[0].text == "in France"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 0


def test_probabilities_are_a_distribution() -> None:
    with serving(null_state()) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        lists = complete(client, prompt="x", max_tokens=4, logprobs=20, temperature=1.7, seed=3)[1]
        for top in lists.top_logprobs:
            assert 0.9 < sum(map(math.exp, top.values())) <= 1.0 + 1e-6


def test_tokens_that_are_no_text_have_names_of_their_own(served: Served) -> None:
    ids = served.tokenizer.encode_plain("😀")
    assert len(ids) > 1
    with httpx.Client(base_url=served.url) as http:
        body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
        lists = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert all(name.startswith("bytes:\\x") for name in lists["tokens"])
    assert lists["top_logprobs"][1] == {lists["tokens"][1]: lists["token_logprobs"][1]}

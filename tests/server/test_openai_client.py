"""The official Python client, unmodified, over a socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from live_server import Script, Served, null_state, serving

REPLIES: dict[str, str | list[int]] = {
    "France": "The capital of France is Paris.",
    "count": "one two three STOP four",
    "emoji": "Zürich 東京 😀 ok",
    **{f"number {n}.": f"reply {n} " * (n + 1) for n in range(20)},
}
PARIS = "The capital of France is Paris."


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(null_state(Script(REPLIES))) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, text: str, **options: object) -> openai.types.chat.ChatCompletion:
    reply = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], **options)  # type: ignore[call-overload]
    assert isinstance(reply, openai.types.chat.ChatCompletion)
    return reply


def chat_chunks(client: openai.OpenAI, text: str, **options: object) -> list[ChatCompletionChunk]:
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        model="tiny", messages=[{"role": "user", "content": text}], stream=True, **options
    )
    return list(stream)


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_chat_completion(client: openai.OpenAI) -> None:
    reply = chat(client, "capital of France?")
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.content == PARIS
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"


def test_streamed_chat_has_one_role_one_finish_reason_and_one_id(client: openai.OpenAI) -> None:
    chunks = chat_chunks(client, "capital of France?")
    assert text_of(chunks) == PARIS
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_counts_prompt_and_reply_with_the_token_that_ended_it(client: openai.OpenAI, served: Served) -> None:
    usage = chat(client, "capital of France?").usage
    assert usage is not None
    assert usage.completion_tokens == len(served.tokenizer.encode_plain(PARIS)) + 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_usage_chunk_is_last_and_has_no_choices(client: openai.OpenAI) -> None:
    chunks = chat_chunks(client, "capital of France?", stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    whole = chat(client, "capital of France?").usage
    assert whole is not None
    assert chunks[-1].usage.completion_tokens == whole.completion_tokens


def test_prompt_said_again_is_cached(client: openai.OpenAI) -> None:
    chat(client, "capital of France? and again")
    usage = chat(client, "capital of France? and again").usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert 0 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens


def test_timings_are_those_of_llama_cpp(client: openai.OpenAI) -> None:
    timings = (chat(client, "capital of France?").model_extra or {})["timings"]
    assert timings["predicted_n"] > 0
    assert timings["predicted_per_second"] == pytest.approx(1e3 * timings["predicted_n"] / timings["predicted_ms"])


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_reply_and_is_not_sent(client: openai.OpenAI, served: Served, stream: bool) -> None:
    if stream:
        chunks = chat_chunks(client, "count", stop=["STOP", "four"])
        text, reason = text_of(chunks), chunks[-1].choices[0].finish_reason
    else:
        reply = chat(client, "count", stop=["STOP", "four"])
        text, reason = reply.choices[0].message.content or "", reply.choices[0].finish_reason
    assert (text, reason) == ("one two three ", "stop")


def test_usage_ends_with_the_stop_string(client: openai.OpenAI, served: Served) -> None:
    usage = chat(client, "count", stop="STOP").usage
    assert usage is not None
    ids = served.tokenizer.encode_plain("one two three STOP four")
    decode = served.tokenizer.token_bytes
    needed = next(n for n in range(1, len(ids)) if b"STOP" in b"".join(decode[i] for i in ids[:n]))
    assert usage.completion_tokens == needed


def test_stop_string_is_kept_when_asked(client: openai.OpenAI) -> None:
    reply = chat(client, "count", stop="STOP", extra_body={"include_stop_str_in_output": True})
    assert reply.choices[0].message.content == "one two three STOP"


def test_stop_token_ends_the_reply(client: openai.OpenAI, served: Served) -> None:
    third = served.tokenizer.encode_plain(PARIS)[3]
    reply = chat(client, "capital of France?", extra_body={"stop_token_ids": [third]})
    whole = b"".join(served.tokenizer.token_bytes[i] for i in served.tokenizer.encode_plain(PARIS)[:3])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (whole.decode(), "stop")


def test_max_tokens_cuts_with_length(client: openai.OpenAI) -> None:
    reply = chat(client, "capital of France?", max_tokens=100, max_completion_tokens=2)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2


def test_reply_longer_than_the_context_is_clamped(client: openai.OpenAI, served: Served) -> None:
    reply = chat(client, "capital of France?", max_tokens=100_000, extra_body={"ignore_eos": True})
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.total_tokens == served.state.model.context_length


def test_ignored_end_of_turn_is_skipped_unless_special_tokens_are_wanted(client: openai.OpenAI) -> None:
    body = {"ignore_eos": True}
    plain = chat(client, "capital of France?", max_tokens=40, extra_body=body)
    assert plain.choices[0].message.content == PARIS
    special = chat(client, "capital of France?", max_tokens=40, extra_body=body | {"skip_special_tokens": False})
    assert (special.choices[0].message.content or "").startswith(PARIS + "<|im_end|><|im_end|>")


def test_characters_split_over_tokens_arrive_whole(client: openai.OpenAI) -> None:
    chunks = chat_chunks(client, "emoji")
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == "Zürich 東京 😀 ok"
    assert not any("\ufffd" in piece for piece in pieces)


def test_cut_inside_a_character_is_one_replacement_character(client: openai.OpenAI, served: Served) -> None:
    ids = served.tokenizer.encode_plain("Zürich 東京 😀 ok")
    table = served.tokenizer.token_bytes
    cut = next(
        n for n in range(1, len(ids)) if "\ufffd" in b"".join(table[i] for i in ids[:n]).decode(errors="replace")
    )
    expected = b"".join(table[i] for i in ids[:cut]).decode(errors="replace")
    assert text_of(chat_chunks(client, "emoji", max_tokens=cut)) == expected
    assert chat(client, "emoji", max_tokens=cut).choices[0].message.content == expected


def test_developer_messages_and_text_parts_reach_the_template(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "capital of "}, {"type": "text", "text": "France?"}]},
        ],
    )
    assert reply.choices[0].message.content == PARIS


def test_completion(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny", prompt="Say count:", max_tokens=40)
    assert reply.object == "text_completion"
    assert reply.choices[0].text == "one two three STOP four"
    assert reply.choices[0].finish_reason == "stop"


def test_completion_has_sixteen_tokens_unless_told(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny", prompt="number 19. of it")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16


def test_streamed_completion_equals_the_whole_one(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="tiny", prompt="the emoji", max_tokens=60, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Zürich 東京 😀 ok"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_give_a_choice_each(client: openai.OpenAI, served: Served, stream: bool) -> None:
    prompts = ["France is", "please count", "an emoji"]
    texts = {0: "", 1: "", 2: ""}
    options = {"model": "tiny", "prompt": prompts, "max_tokens": 60, "stream": stream}
    replies = client.completions.create(**options)  # type: ignore[call-overload]
    for reply in replies if stream else [replies]:
        for choice in reply.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [PARIS, "one two three STOP four", "Zürich 東京 😀 ok"]


def test_token_ids_are_prompts_too(client: openai.OpenAI, served: Served) -> None:
    france, count = (served.tokenizer.encode_prompt(text) for text in ("in France", "to count"))
    one = client.completions.create(model="tiny", prompt=france, max_tokens=60)
    assert one.choices[0].text == PARIS
    two = client.completions.create(model="tiny", prompt=[france, count], max_tokens=60)
    assert [choice.text for choice in two.choices] == [PARIS, "one two three STOP four"]


def test_echo_puts_the_prompt_first(client: openai.OpenAI, served: Served) -> None:
    reply = client.completions.create(model="tiny", prompt="Say count: ", max_tokens=40, echo=True)
    assert reply.choices[0].text == "Say count: one two three STOP four"
    ids = served.tokenizer.encode_prompt("Say ")
    only = client.completions.create(model="tiny", prompt=ids, max_tokens=0, echo=True)
    assert (only.choices[0].text, only.choices[0].finish_reason) == ("Say ", "length")
    assert only.usage is not None
    assert only.usage.completion_tokens == 0


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "npuserve"
    with pytest.raises(openai.NotFoundError, match="the one served is 'tiny'"):
        client.models.retrieve("org/other")


def test_prompt_longer_than_the_context_is_told_with_both_numbers(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "word " * 2000)
    assert caught.value.code == "context_length_exceeded"
    assert str(served.state.model.context_length) in caught.value.message


def test_same_seed_gives_the_same_text(served: Served) -> None:
    with serving(null_state()) as hashing, openai.OpenAI(base_url=f"{hashing.url}/v1", api_key="none") as client:
        options = {"temperature": 1.5, "max_tokens": 20, "seed": -7}
        assert len({chat(client, "x", **options).choices[0].message.content for _ in range(3)}) == 1
        del options["seed"]
        assert len({chat(client, "x", **options).choices[0].message.content for _ in range(3)}) > 1


def test_twenty_parallel_streams_do_not_mix(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(20) as executor:
        streams = executor.map(lambda n: text_of(chat_chunks(client, f"number {n}.")), range(20))
    assert list(streams) == [f"reply {n} " * (n + 1) for n in range(20)]

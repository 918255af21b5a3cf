"""Thoughts told from replies, and several replies to one prompt, through the official client."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest

from live_server import Script, Served, null_state, serving

# Like Qwen3's: told not to think, the template closes the thoughts itself.
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
{% if not enable_thinking %}<think>

</think>

{% endif %}"""
OPENING = "{%- for message in messages %}{{ message.content }}{% endfor %}<|im_start|>assistant\n<think>\n"
THOUGHT = "<think>\nIs it 東京?\nNo.\n</think>\n\nIt is Paris."


@contextmanager
def thinking(
    replies: dict[str, str | list[int]], template: str = TEMPLATE, *, think: bool = True, splits: bool = True
) -> Iterator[tuple[openai.OpenAI, Served]]:
    state = null_state(Script(replies), template=template)
    state.model = replace(state.model, splits_reasoning=splits, think=think)
    with (
        serving(state) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, served


def ask(client: openai.OpenAI, **options: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": "capital?"}]
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def parts(message: Any) -> tuple[str | None, str | None]:
    return getattr(message, "reasoning_content", None), message.content


def test_thoughts_are_split_from_the_reply() -> None:
    with thinking({"": THOUGHT}) as (client, served):
        reply = ask(client)
    assert parts(reply.choices[0].message) == ("Is it 東京?\nNo.", "It is Paris.")
    counted = served.tokenizer.encode_plain(THOUGHT.partition("\n\nIt")[0])
    assert reply.usage.completion_tokens_details.reasoning_tokens == len(counted)


def test_streamed_thoughts_come_first_and_tags_never() -> None:
    with thinking({"": THOUGHT}) as (client, _):
        deltas = [chunk.choices[0].delta for chunk in ask(client, stream=True)]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    contents = [delta.content or "" for delta in deltas]
    assert ("".join(thoughts), "".join(contents)) == ("Is it 東京?\nNo.", "It is Paris.")
    assert max(i for i, thought in enumerate(thoughts) if thought) < min(i for i, text in enumerate(contents) if text)


def test_thoughts_that_the_template_opened() -> None:
    with thinking({"": "It may be Rome.\n</think>\nParis."}, OPENING) as (client, _):
        assert parts(ask(client).choices[0].message) == ("It may be Rome.", "Paris.")


def test_cut_inside_thoughts_leaves_the_content_empty() -> None:
    with thinking({"": THOUGHT}) as (client, _):
        reply = ask(client, max_tokens=6)
    thought, content = parts(reply.choices[0].message)
    assert (content, reply.choices[0].finish_reason) == ("", "length")
    assert "Is it 東京?".startswith(thought or "?")
    assert reply.usage.completion_tokens_details.reasoning_tokens == 6


def test_reply_without_thoughts_is_content() -> None:
    with thinking({"": "Just <think> about it."}) as (client, _):
        reply = ask(client, extra_body={"enable_thinking": False})
    assert parts(reply.choices[0].message) == (None, "Just <think> about it.")
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0


def test_nothing_is_split_unless_the_server_or_the_request_wants_it() -> None:
    with thinking({"": THOUGHT}, splits=False) as (client, _):
        assert parts(ask(client).choices[0].message) == (None, THOUGHT)
    with thinking({"": THOUGHT}) as (client, _):
        whole = ask(client, extra_body={"separate_reasoning": False})
        assert parts(whole.choices[0].message) == (None, THOUGHT)


def test_stop_string_ends_thoughts_too() -> None:
    with thinking({"": THOUGHT}) as (client, _):
        reply = ask(client, stop=["No"])
    assert parts(reply.choices[0].message) == ("Is it 東京?", "")
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("template", [TEMPLATE, OPENING])
def test_grammar_waits_for_the_end_of_the_thoughts(template: str) -> None:
    said = THOUGHT if template == TEMPLATE else THOUGHT.removeprefix("<think>\n")
    with thinking({"": said}, template) as (client, _):
        reply = ask(client, extra_body={"choice": ["Rome", "Paris"]})
    thought, content = parts(reply.choices[0].message)
    assert thought == "Is it 東京?\nNo."
    assert content in ("Rome", "Paris")


def test_grammar_holds_at_once_for_a_model_that_does_not_think() -> None:
    for enabled in (True, False):
        with thinking({"": "It is Paris."}) as (client, _):
            reply = ask(client, extra_body={"choice": ["Rome", "Paris"], "enable_thinking": enabled})
        assert parts(reply.choices[0].message)[1] in ("Rome", "Paris")


@pytest.fixture(scope="module")
def hashing() -> Iterator[openai.OpenAI]:
    """A model that says random things."""
    with serving(null_state()) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        yield client


def test_choices_differ_and_each_seed_gives_the_same_alone(hashing: openai.OpenAI) -> None:
    options: dict[str, Any] = {"temperature": 2.0, "max_tokens": 12}
    together = ask(hashing, n=4, seed=40, **options)
    texts = [choice.message.content for choice in together.choices]
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert [ask(hashing, seed=40 + k, **options).choices[0].message.content for k in range(4)] == texts


def test_choices_share_the_count_of_their_prompt(hashing: openai.OpenAI) -> None:
    one, three = (ask(hashing, n=n, max_tokens=5).usage for n in (1, 3))
    assert three.prompt_tokens == one.prompt_tokens
    assert three.completion_tokens == 15


def test_streamed_choices_are_the_whole_ones(hashing: openai.OpenAI) -> None:
    options: dict[str, Any] = {"temperature": 2.0, "max_tokens": 12, "n": 3, "seed": 8}
    texts = ["", "", ""]
    reasons: list[tuple[int, str]] = []
    for chunk in ask(hashing, stream=True, **options):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            reasons.append((choice.index, choice.finish_reason))
    assert texts == [choice.message.content for choice in ask(hashing, **options).choices]
    assert sorted(reasons) == [(0, "length"), (1, "length"), (2, "length")]


def test_choices_of_several_prompts_stand_in_their_order(hashing: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "temperature": 2.0, "seed": 5, "max_tokens": 6}
    both = hashing.completions.create(prompt=["one", "two"], n=2, **options)
    alone = [hashing.completions.create(prompt=prompt, n=2, **options).choices for prompt in ("one", "two")]
    assert [choice.text for choice in both.choices] == [choice.text for pair in alone for choice in pair]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]


def test_best_of_several_is_the_likeliest(hashing: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": "x", "temperature": 3.0, "seed": 5, "max_tokens": 6}
    every = hashing.completions.create(n=6, logprobs=0, **options)

    def mean(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return float(sum(values) / len(values))

    ranked = sorted(every.choices, key=mean, reverse=True)
    best = hashing.completions.create(n=2, best_of=6, **options)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.choices[0].logprobs is None
    assert best.usage is not None
    assert best.usage.completion_tokens == 36

import threading
import time

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from npuserve.errors import UnsupportedModelError
from npuserve.text.chat_template import ChatTemplate
from npuserve.text.tokenizer import Tokenizer
from tiny_tokenizer import CONTROL_TOKENS, tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer())
TEMPLATE = ChatTemplate(None)
IM_START, IM_END = 1, 2

content = st.lists(
    st.one_of(st.text(max_size=6), st.sampled_from([*CONTROL_TOKENS, "<|im_", "end|>", "<think>", " the", "\n"])),
    max_size=8,
).map("".join)


def encode_chat(*contents: str) -> list[int]:
    shield = TOKENIZER.shield()
    messages = shield.hide([{"role": "user", "content": text} for text in contents])
    return TOKENIZER.encode_rendered(TEMPLATE.render(messages), shield)


@given(st.lists(content.filter(lambda text: not any(token in text for token in CONTROL_TOKENS)), max_size=3))
def test_ordinary_chat_is_encoded_as_the_whole_rendered_string(contents: list[str]) -> None:
    rendered = TEMPLATE.render([{"role": "user", "content": text} for text in contents])
    assert encode_chat(*contents) == tiny_tokenizer().encode(rendered, add_special_tokens=False).ids


@given(st.lists(content, min_size=1, max_size=3))
def test_content_never_adds_a_control_token(contents: list[str]) -> None:
    ids = encode_chat(*contents)
    assert ids.count(IM_START) == len(contents) + 1
    assert ids.count(IM_END) == len(contents)


@given(st.lists(content, min_size=1, max_size=3))
def test_spelled_out_control_tokens_keep_their_characters(contents: list[str]) -> None:
    rendered = TEMPLATE.render([{"role": "user", "content": text} for text in contents])
    assert tiny_tokenizer().decode(encode_chat(*contents), skip_special_tokens=False) == rendered


def test_text_around_a_spelled_out_token_is_encoded_as_one_run() -> None:
    plain = tiny_tokenizer()
    plain.encode_special_tokens = True
    run = plain.encode("user\nSay <|im_end|> please", add_special_tokens=False).ids
    tail = plain.encode("\n", add_special_tokens=False).ids
    assistant = plain.encode("assistant\n", add_special_tokens=False).ids
    expected = [IM_START, *run, IM_END, *tail, IM_START, *assistant]
    assert encode_chat("Say <|im_end|> please") == expected


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer(tiny_tokenizer())
    tokenizer.encode_plain("a")
    num_turns, encoding = 0, threading.Event()

    def count() -> None:
        nonlocal num_turns
        while encoding.is_set():
            time.sleep(0.001)
            num_turns += 1

    encoding.set()
    other = threading.Thread(target=count)
    other.start()
    for encode in (tokenizer.encode_prompt, tokenizer.encode_plain):
        encode("some text of many words " * 20_000)
    encoding.clear()
    other.join()
    assert num_turns > 20


def test_raw_prompt_finds_control_tokens() -> None:
    assert TOKENIZER.encode_prompt("<|im_start|>user")[0] == IM_START


def test_shield_hides_strings_inside_lists_and_keys() -> None:
    shield = TOKENIZER.shield()
    hidden = shield.hide({"<|im_end|>": ["a<|im_start|>", 7, None]})
    assert "<|im" not in str(hidden)
    assert shield.restore(str(hidden)) == "{'<|im_end|>': ['a<|im_start|>', 7, None]}"


def test_longest_of_two_control_tokens_with_one_beginning_is_hidden() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(["<|im_end|>more"])
    wrapped = Tokenizer(tokenizer)
    shield = wrapped.shield()
    assert shield.hide("<|im_end|>more").endswith("x")


def test_tokens_of_a_wordpiece_decoder_are_refused_by_name() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(UnsupportedModelError, match=r"the tokenizer's decoder \(none\) is neither"):
        Tokenizer(tokenizer)

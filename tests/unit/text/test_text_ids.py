"""Text in the place of token ids, and the tokenizer that stands in where there is none."""

from hypothesis import given
from hypothesis import strategies as st

from npuserve.text.detokenizer import Detokenizer
from npuserve.text.prompt_family import FAMILIES, prompt_family
from npuserve.text.runtime_tokenizer import MixedTokenizer, RuntimeTokenizer
from npuserve.text.text_ids import joined_text, real_ids, text_id, text_of
from tiny_tokenizer import tiny_tokenizer

MARKERS = ("<|im_start|>", "<|im_end|>")


@given(st.binary(max_size=40), st.integers(-1, (1 << 31) - 1))
def test_a_text_id_is_its_text_and_knows_its_token(text: bytes, token: int) -> None:
    made = text_id(text, token)
    assert text_of(made) == text
    assert real_ids([made]) == [max(token, 0)]


@given(st.integers(0, (1 << 32) - 1))
def test_a_tokens_id_is_no_text(token: int) -> None:
    assert text_of(token) is None
    assert real_ids([token]) == [token]


def test_joined_text_is_of_texts_only() -> None:
    assert joined_text([text_id(b"a"), text_id(b""), text_id(b"bc")]) == b"abc"
    assert joined_text([text_id(b"a"), 5]) is None
    assert joined_text([]) == b""


@given(st.text(max_size=200))
def test_a_prompt_keeps_every_character_but_nul(text: str) -> None:
    tokenizer = RuntimeTokenizer(MARKERS)
    assert joined_text(tokenizer.encode_prompt(text)) == text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass")


@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<", "a", " "]), max_size=12))
def test_no_marker_survives_in_plain_text(parts: list[str]) -> None:
    tokenizer = RuntimeTokenizer(MARKERS)
    plain = joined_text(tokenizer.encode_plain("".join(parts)))
    hidden = tokenizer.shield().hide("".join(parts))
    assert plain == hidden.encode()
    for marker in MARKERS:
        assert marker not in hidden
    assert hidden.replace("< |", "<|") == "".join(parts).replace("< |", "<|")


def test_the_estimate_of_a_prompts_tokens_is_of_the_right_size() -> None:
    text = "The quick brown fox jumps over the lazy dog, doesn't it? " * 20
    count = len(RuntimeTokenizer(MARKERS).encode_prompt(text))
    assert 0.7 < count / (15 * 20) < 1.5  # 15 tokens a sentence, as GPT-2 cuts it


def test_replies_of_tokens_and_texts_are_one_text() -> None:
    own = tiny_tokenizer()
    tokenizer = MixedTokenizer(own)
    ids = own.encode("all is", add_special_tokens=False).ids
    mixed = [*ids, text_id("ü".encode()[:1]), text_id("ü".encode()[1:] + b" well")]
    assert Detokenizer(tokenizer.token_bytes).whole(mixed) == "all isü well"


def test_every_family_is_found_by_its_name_and_each_name_has_one() -> None:
    assert [prompt_family("x", family.name) for family in FAMILIES] == list(FAMILIES)
    for name, family in {
        "Qwen3-4B-Instruct": "qwen3",
        "qwen2.5-coder": "qwen",
        "Meta-Llama-3.1-8B": "llama3",
        "Llama3.2": "llama3",
        "llama-2-7b": "chatml",
        "gemma-3-1b": "gemma",
        "Phi-4-mini": "phi3",
        "TinyLlama-1.1B": "zephyr",
        "DeepSeek-R1-Distill-Llama-8B": "deepseek",
        "internlm2": "chatml",
    }.items():
        assert prompt_family(name).name == family


def test_a_families_end_markers_are_among_its_markers() -> None:
    for family in FAMILIES:
        assert set(family.end_markers) <= set(family.markers)

"""What a tokenizer rebuilt from GGUF does beside BPE; its ids are compared with others' in tests/oracle."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.special_tokens import SpecialTokens
from npuserve.errors import CheckpointError, UnsupportedModelError
from tiny_gguf import tiny_vocabulary, write_gguf

TOKENS, MERGES = tiny_vocabulary()
IM_START, IM_END = len(TOKENS), len(TOKENS) + 1


def load(folder: Path, **arguments: Any) -> tuple[Tokenizer, SpecialTokens]:
    checkpoint = open_checkpoint(write_gguf(folder / "tiny.gguf", **arguments))
    try:
        return checkpoint.tokenizer(), checkpoint.special_tokens
    finally:
        checkpoint.close()


def test_control_tokens_are_found_unless_they_are_to_be_text(tmp_path: Path) -> None:
    tokenizer, _ = load(tmp_path)
    assert tokenizer.encode("<|im_start|>the<|im_end|>").ids[0] == IM_START
    assert tokenizer.encode("<|im_start|>the<|im_end|>").ids[-1] == IM_END
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode("<|im_start|>the<|im_end|>").ids
    assert not {IM_START, IM_END} & set(plain)
    assert tokenizer.decode(plain, skip_special_tokens=False) == "<|im_start|>the<|im_end|>"


def test_control_tokens_stay_text_where_whole_words_skip_the_merges(tmp_path: Path) -> None:
    tokenizer, _ = load(tmp_path, pre="llama-bpe")
    tokenizer.encode_special_tokens = True
    assert not {IM_START, IM_END} & set(tokenizer.encode("<|im_start|> <|im_end|>").ids)


def test_user_defined_tokens_are_found_even_in_plain_text(tmp_path: Path) -> None:
    tokenizer, _ = load(tmp_path, user_defined=["<think>"])
    tokenizer.encode_special_tokens = True
    think = tokenizer.token_to_id("<think>")
    assert think == IM_END + 1
    assert think in tokenizer.encode("a<think>b").ids
    assert "<think>" in tokenizer.decode([think], skip_special_tokens=True)


def test_unused_tokens_leave_a_gap_that_shifts_no_id(tmp_path: Path) -> None:
    tokenizer, _ = load(tmp_path, control=(), unused=["[PAD0]", "[PAD1]"])
    assert tokenizer.token_to_id("[PAD0]") is None
    assert tokenizer.id_to_token(len(TOKENS)) is None
    assert tokenizer.id_to_token(len(TOKENS) - 1) == TOKENS[-1]


@pytest.mark.parametrize(
    ("pre", "extra", "begins", "ends"),
    [
        ("smollm", {}, False, False),
        ("smollm", {"add_bos_token": True}, True, False),
        ("smollm", {"add_bos_token": True, "add_eos_token": True}, True, True),
        ("smollm", {"add_eos_token": True}, False, True),
        ("llama-bpe", {}, True, False),
        ("llama-bpe", {"add_bos_token": False}, False, False),
    ],
)
def test_text_begins_and_ends_as_the_file_says(
    tmp_path: Path, pre: str, extra: dict[str, bool], begins: bool, ends: bool
) -> None:
    keys: dict[str, Any] = {"bos_token_id": IM_START, "eos_token_id": IM_END} | extra
    tokenizer, _ = load(tmp_path, pre=pre, extra={f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    ids = tokenizer.encode("the", add_special_tokens=True).ids
    assert (ids[0] == IM_START, ids[-1] == IM_END) == (begins, ends)
    inner = tokenizer.encode("the", add_special_tokens=False).ids
    assert not {IM_START, IM_END} & set(inner)
    assert ids[begins : len(ids) - ends] == inner


def test_special_tokens_have_strings_and_stops(tmp_path: Path) -> None:
    extra = {"bos_token_id": IM_START, "eos_token_id": 5, "eot_token_id": 6, "padding_token_id": 7}
    _, special = load(tmp_path, extra={f"tokenizer.ggml.{key}": value for key, value in extra.items()})
    assert special == SpecialTokens("<|im_start|>", IM_START, TOKENS[5], 5, TOKENS[7], 7, frozenset({5, 6, IM_END}))


def test_ordinary_token_that_looks_like_an_end_of_turn_is_no_stop(tmp_path: Path) -> None:
    _, special = load(tmp_path, control=(), user_defined=["<|im_end|>"])
    assert special.stop_ids == frozenset()


def test_every_byte_survives_a_round_trip(tmp_path: Path) -> None:
    tokenizer, _ = load(tmp_path)
    text = "".join(map(chr, range(0x180))) + "\u2028\ufeff😀"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_stand_alone_for_smollm_only(tmp_path: Path) -> None:
    vocabulary = ([*TOKENS, "12"], [*MERGES, "1 2"])
    one, _ = load(tmp_path, vocabulary=vocabulary)
    two, _ = load(tmp_path, vocabulary=vocabulary, pre="gpt-2")
    assert one.encode("12").tokens == ["1", "2"]
    assert two.encode("12").tokens == ["12"]


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    tokenizer, _ = load(tmp_path, pre="qwen2")
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"pre": "poro-chat"}, UnsupportedModelError, "'poro-chat' is not known; known are gpt-2, smollm, qwen2"),
        ({"pre": None}, UnsupportedModelError, "None is not known"),
        ({"model": "llama"}, UnsupportedModelError, "tokenizer model 'llama' is not read"),
        ({"model": None}, UnsupportedModelError, "tokenizer model None"),
        ({"tokens": None}, CheckpointError, "tokens is missing"),
        ({"tokens": [1, 2, 3]}, CheckpointError, "tokens is missing"),
        ({"tokens": ["a"] * (len(TOKENS) + 2)}, CheckpointError, "holds a token twice"),
        ({"merges": None}, CheckpointError, "merges is missing"),
        ({"merges": ["ab"]}, CheckpointError, "'ab' is not two tokens"),
        ({"merges": ["a"]}, CheckpointError, "'a' is not two tokens"),
        ({"merges": ["zzz yyy"]}, CheckpointError, "do not fit together"),
        ({"token_type": [1, 1]}, CheckpointError, "not one number for each"),
        ({"token_type": "x"}, CheckpointError, "not one number for each"),
        ({"bos_token_id": 4_000_000}, CheckpointError, "bos_token_id is 4000000"),
        ({"eos_token_id": "x"}, CheckpointError, "eos_token_id is 'x'"),
    ],
)
def test_bad_vocabulary_is_named(
    tmp_path: Path, extra: dict[str, Any], error: type[CheckpointError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        load(tmp_path, extra={f"tokenizer.ggml.{key}": value for key, value in extra.items()})
    assert "\n" not in str(caught.value)

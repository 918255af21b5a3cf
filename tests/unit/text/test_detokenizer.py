from itertools import pairwise

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from npuserve.text.detokenizer import Detokenizer
from npuserve.text.token_bytes import TokenBytes, byte_fallback
from tiny_tokenizer import byte_tokens, tiny_tokenizer

TABLE = TokenBytes(tiny_tokenizer())
VOCAB_SIZE = tiny_tokenizer().get_vocab_size()

token_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40)


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:stop] for start, stop in pairwise(edges)]


@given(token_ids, st.lists(st.integers(0, 100), max_size=6))
def test_pieces_joined_equal_all_bytes_decoded_at_once(ids: list[int], cuts: list[int]) -> None:
    detokenizer = Detokenizer(TABLE)
    text = "".join(detokenizer.push(piece) for piece in cut(ids, cuts)) + detokenizer.finish()
    assert text == b"".join(TABLE[i] for i in ids).decode("utf-8", "replace")


@given(st.text(max_size=30))
def test_encoded_text_comes_back_without_replacement_characters(text: str) -> None:
    detokenizer = Detokenizer(TABLE)
    ids = tiny_tokenizer().encode(text, add_special_tokens=False).ids
    pieces = [detokenizer.push([token]) for token in ids]
    assert "".join(pieces) == text
    assert detokenizer.finish() == ""


@given(token_ids)
def test_same_text_as_the_tokenizers_library_decodes(ids: list[int]) -> None:
    detokenizer = Detokenizer(TABLE)
    text = detokenizer.push(ids) + detokenizer.finish()
    assert text == tiny_tokenizer().decode(ids, skip_special_tokens=False)


def test_bytes_of_an_incomplete_character_are_held() -> None:
    ids = byte_tokens("😀".encode())
    detokenizer = Detokenizer(TABLE)
    assert [detokenizer.push([token]) for token in ids] == ["", "", "", "😀"]


def test_truncated_character_is_one_replacement_at_the_end() -> None:
    ids = byte_tokens("😀".encode()[:3])
    detokenizer = Detokenizer(TABLE)
    assert detokenizer.push(ids) == ""
    assert detokenizer.finish() == "\ufffd"


def test_skipped_ids_give_no_text() -> None:
    ids = tiny_tokenizer().encode("<|im_start|>user<|im_end|>").ids
    assert Detokenizer(TABLE, skipped={0, 1, 2}).push(ids) == "user"
    assert Detokenizer(TABLE).push(ids) == "<|im_start|>user<|im_end|>"


def test_id_beyond_the_tokenizer_is_no_text() -> None:
    assert TABLE[VOCAB_SIZE + 5] == b""


def test_sentencepiece_bytes_and_spaces() -> None:
    assert byte_fallback("<0xE6>") == b"\xe6"
    assert byte_fallback("<0xZZ>") == b"<0xZZ>"
    assert byte_fallback("▁the▁") == b" the "


def test_sentencepiece_reply_loses_one_leading_space_only_when_asked() -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE({"▁": 0, "▁▁": 1, "a": 2}, [("▁", "▁")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    table = TokenBytes(tokenizer)
    assert table.strips_leading_space
    assert Detokenizer(table, strip_leading_space=True).push([1, 2, 0]) == " a "
    assert Detokenizer(table).push([1, 2, 0]) == "  a "

"""Token ids of tokenizers rebuilt from GGUF, against llama.cpp, transformers and a plain Python BPE.

SmolLM2's own file, and files of each pre-tokenizer with a vocabulary that is learnt here across word boundaries, so
that a cut in another place shows in the ids. Where llama.cpp differs from the Hugging Face tokenizers, those win: they
made what the models were trained on.
"""

import json
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from multilingual_corpus import multilingual_lines
from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.gguf_header import read_header
from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.checkpoints.mapped_file import MappedFile
from tiny_gguf import write_gguf

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
import llama_cpp
import regex  # type: ignore[import-untyped]
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

pytestmark = pytest.mark.oracle

NUM_LINES = 10_000
Vocabulary = tuple[list[str], list[str]]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    (path,) = ensure_checkpoint("smollm2").glob("*.gguf")
    return path


@pytest.fixture(scope="module")
def vocabulary(smollm2: Path) -> Vocabulary:
    file = MappedFile(smollm2)
    metadata = read_header(file).metadata
    file.close()
    return metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return multilingual_lines(NUM_LINES)


def rebuilt(path: Path) -> Tokenizer:
    checkpoint = open_checkpoint(path)
    tokenizer = checkpoint.tokenizer()
    checkpoint.close()
    return tokenizer


def ids_of(tokenizer: Tokenizer, lines: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]


def llama_cpp_ids(path: Path, lines: list[str], special: bool = False) -> list[list[int]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    try:
        return [model.tokenize(line.encode(), add_bos=False, special=special) for line in lines]
    finally:
        model.close()


def assert_same(ours: list[list[int]], theirs: list[list[int]], lines: list[str]) -> None:
    assert len(ours) == len(theirs) == len(lines)
    different = [line for line, left, right in zip(lines, ours, theirs, strict=True) if left != right]
    assert not different, f"{len(different)} of {len(lines)} lines differ, the first is {different[0]!r}"


def made(folder: Path, pre: str, vocabulary: Vocabulary) -> Path:
    return write_gguf(folder / f"{pre}.gguf", pre=pre, vocabulary=vocabulary, control=(), tensors={})


class PlainBpe:
    """Byte-level BPE as its papers have it: cut, map bytes, join the pair of the lowest rank until none is left."""

    def __init__(self, vocabulary: Vocabulary, *patterns: str) -> None:
        tokens, merges = vocabulary
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._patterns = [regex.compile(pattern) for pattern in patterns]
        self._bytes: dict[int, str] = bytes_to_unicode()
        self._word = lru_cache(maxsize=None)(self._merge)

    def encode(self, text: str) -> list[int]:
        words = [text]
        for pattern in self._patterns:
            words = [piece for word in words for piece in self._isolate(pattern, word)]
        return [token for word in words for token in self._word(word)]

    @staticmethod
    def _isolate(pattern: Any, word: str) -> Iterator[str]:
        done = 0
        for match in pattern.finditer(word):
            if match.start() > done:
                yield word[done : match.start()]
            yield match.group()
            done = match.end()
        if done < len(word):
            yield word[done:]

    def _merge(self, word: str) -> list[int]:
        pieces = [self._bytes[byte] for byte in word.encode()]
        while len(pieces) > 1:
            ranked = [(self._ranks.get(pair, len(self._ranks)), i) for i, pair in enumerate(pairwise(pieces))]
            rank, i = min(ranked)
            if rank == len(self._ranks):
                break
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        return [self._ids[piece] for piece in pieces]


QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def test_corpus_is_as_large_and_varied_as_it_claims(lines: list[str]) -> None:
    assert len(lines) == NUM_LINES
    characters = {character for line in lines for character in line}
    assert len(characters) > 20_000
    assert {unicodedata.category(character) for character in characters} >= {"Lo", "Mn", "Nd", "Nl", "No", "Cf", "So"}


def test_smollm2_equals_llama_cpp(smollm2: Path, lines: list[str]) -> None:
    assert_same(ids_of(rebuilt(smollm2), lines), llama_cpp_ids(smollm2, lines), lines)


def test_smollm2_equals_a_plain_bpe(smollm2: Path, vocabulary: Vocabulary, lines: list[str]) -> None:
    reference = PlainBpe(vocabulary, r"\p{N}", GPT2_PATTERN)
    assert_same(ids_of(rebuilt(smollm2), lines), [reference.encode(line) for line in lines], lines)


def test_smollm2_decodes_to_the_text_it_encoded(smollm2: Path, lines: list[str]) -> None:
    tokenizer = rebuilt(smollm2)
    assert tokenizer.decode_batch(ids_of(tokenizer, lines), skip_special_tokens=False) == lines


def test_control_tokens_in_text_equal_llama_cpp_both_ways(smollm2: Path) -> None:
    lines = [
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "a <|im_end|> b<|im_end|>c",
        "<|endoftext|><repo_name>x<file_sep>",
        " <|im_start|> <|im_start|",
    ]
    tokenizer = rebuilt(smollm2)
    assert_same(ids_of(tokenizer, lines), llama_cpp_ids(smollm2, lines, special=True), lines)
    tokenizer.encode_special_tokens = True
    assert_same(ids_of(tokenizer, lines), llama_cpp_ids(smollm2, lines, special=False), lines)


@pytest.fixture(scope="module")
def crossing(lines: list[str]) -> Vocabulary:
    """A vocabulary whose merges know no word boundary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=12_000, initial_alphabet=alphabet, show_progress=False, max_token_length=12
    )
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(merge) for merge in model["merges"]]


def composed(lines: list[str]) -> list[str]:
    """Normal form C by the tokenizers library: Python's Unicode tables are of another version, and marks move."""
    normal_form = normalizers.NFC()
    return [normal_form.normalize_str(line) for line in lines]


def transformers_tokenizer(pre: str, vocabulary: Vocabulary) -> Tokenizer:
    ids = {token: i for i, token in enumerate(vocabulary[0])}
    merges = [tuple(merge.split(" ")) for merge in vocabulary[1]]
    made: Tokenizer
    if pre == "llama-bpe":
        converter = TikTokenConverter()
        converter.extract_vocab_merges_from_model = lambda _: (ids, merges)
        made = converter.converted()
    else:
        kind = {"gpt-2": GPT2Tokenizer, "qwen2": Qwen2Tokenizer}[pre]
        made = kind(vocab=ids, merges=merges).backend_tokenizer
    return made


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe"])
def test_pretokenizers_equal_transformers(pre: str, tmp_path: Path, crossing: Vocabulary, lines: list[str]) -> None:
    ours = rebuilt(made(tmp_path, pre, crossing))
    assert_same(ids_of(ours, lines), ids_of(transformers_tokenizer(pre, crossing), lines), lines)


@pytest.mark.parametrize(
    ("pre", "patterns"), [("gpt-2", [GPT2_PATTERN]), ("smollm", [r"\p{N}", GPT2_PATTERN]), ("qwen2", [QWEN2_PATTERN])]
)
def test_pretokenizers_equal_a_plain_bpe(
    pre: str, patterns: list[str], tmp_path: Path, crossing: Vocabulary, lines: list[str]
) -> None:
    reference = PlainBpe(crossing, *patterns)
    text = composed(lines) if pre == "qwen2" else lines
    ours = rebuilt(made(tmp_path, pre, crossing))
    assert_same(ids_of(ours, lines), [reference.encode(line) for line in text], lines)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_pretokenizers_equal_llama_cpp(pre: str, tmp_path: Path, crossing: Vocabulary, lines: list[str]) -> None:
    """llama.cpp leaves out the composition that Qwen2's tokenizer begins with, so it is given composed text."""
    path = made(tmp_path, pre, crossing)
    text = composed(lines) if pre == "qwen2" else lines
    assert_same(ids_of(rebuilt(path), lines), llama_cpp_ids(path, text), lines)

"""The byte-level BPE tokenizer carried in a GGUF file, rebuilt as a `tokenizers.Tokenizer`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npuserve.checkpoints.special_tokens import SpecialTokens, stop_ids
from npuserve.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE_MARK = "\u2581"
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class _Pretokenizer:
    """How text is cut into words before BPE; the facts that `tokenizer.ggml.pre` stands for.

    `pattern` None is GPT-2's own. `ignore_merges` takes a word that is a token as it is, whatever the merges say.
    """

    pattern: str | None = None
    single_digits: bool = False
    composed: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


def _words(digits: str) -> str:
    """The word pattern that GPT-4 began: contractions, letters, `digits`, punctuation, newlines, other spaces."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


SPACED = "gemma4"
"""BPE over whole texts in which spaces are marked, as in SentencePiece; other bytes have tokens like <0xE4>."""
_LLAMA3 = _Pretokenizer(_words(r"\p{N}{1,3}"), ignore_merges=True, adds_bos=True)
_PRETOKENIZERS: dict[str, _Pretokenizer] = {
    "gpt-2": _Pretokenizer(),
    "smollm": _Pretokenizer(single_digits=True),
    "qwen2": _Pretokenizer(_words(r"\p{N}"), composed=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "lfm2": _LLAMA3,
    SPACED: _Pretokenizer(adds_bos=True),
}


class GgufVocabulary:
    """The `tokenizer.ggml.*` entries of a GGUF file, checked for consistency.

    Raises CheckpointError for damaged entries, UnsupportedModelError for a model other than byte-level BPE or a
    pre-tokenizer that is not known.
    """

    def __init__(self, metadata: Mapping[str, Any], path: object) -> None:
        self._metadata, self._path = metadata, path
        model, pre = self._get("model"), self._get("pre")
        self._is_spaced = model == SPACED
        if not isinstance(model, str) or model not in ("gpt2", SPACED):
            raise UnsupportedModelError(
                f"{path}: tokenizer model {model!r} is not read from GGUF, only byte-level BPE ('gpt2') and {SPACED!r}"
                " are;"
                " use the safetensors folder with its tokenizer.json"
            )
        if self._is_spaced:
            pre = SPACED
        if not isinstance(pre, str) or pre not in _PRETOKENIZERS:
            raise UnsupportedModelError(
                f"{path}: pre-tokenizer {pre!r} is not known; known are {', '.join(_PRETOKENIZERS)};"
                " use the safetensors folder with its tokenizer.json"
            )
        self._pretokenizer = _PRETOKENIZERS[pre]
        self._tokens = self._strings("tokens")
        self._types = self._token_types()
        self._merges = self._read_merges()

    def build(self) -> "Tokenizer":
        """A new tokenizer that gives the ids of the original one; takes about 0.05 s for 50,000 tokens."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

        vocabulary = {token: i for i, token in enumerate(self._tokens) if self._types[i] != _UNUSED}
        if len(vocabulary) != np.count_nonzero(self._types != _UNUSED):
            raise CheckpointError(f"{self._path}: tokenizer.ggml.tokens holds a token twice; convert the model again")
        fallback: dict[str, Any] = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
        try:
            bpe = models.BPE(
                vocabulary,
                self._merges,
                ignore_merges=self._pretokenizer.ignore_merges,
                **(fallback if self._is_spaced else {}),
            )
        except Exception as error:  # the library raises no narrower class
            raise CheckpointError(f"{self._path}: vocabulary and merges do not fit together ({error})") from error
        tokenizer = Tokenizer(bpe)
        if self._is_spaced:
            tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
            back = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
            tokenizer.decoder = decoders.Sequence(back)
        else:
            self._cut_words(tokenizer)
            tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in self._of_type(_CONTROL, _UNKNOWN)])
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t in self._of_type(_USER_DEFINED)])
        self._frame(tokenizer)
        return tokenizer

    def special_tokens(self) -> SpecialTokens:
        bos, eos, pad = (self._token_id(name) for name in ("bos_token_id", "eos_token_id", "padding_token_id"))
        named = (self._token_id(name) for name in ("eos_token_id", "eot_token_id", "eom_token_id"))
        control = {self._tokens[i]: i for i in np.flatnonzero(self._types == _CONTROL).tolist()}
        stops = stop_ids((i for i in named if i is not None), control.get)
        return SpecialTokens(self._token(bos), bos, self._token(eos), eos, self._token(pad), pad, stops)

    def _cut_words(self, tokenizer: "Tokenizer") -> None:
        from tokenizers import Regex, normalizers, pre_tokenizers

        plain = self._pretokenizer.pattern is None
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self._pretokenizer.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self._pretokenizer.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self._pretokenizer.pattern), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=plain))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if self._pretokenizer.composed:
            tokenizer.normalizer = normalizers.NFC()

    def _frame(self, tokenizer: "Tokenizer") -> None:
        """Begin (and end) every text that is encoded with add_special_tokens=True as the file says."""
        from tokenizers.processors import TemplateProcessing

        bos, eos = self._token_id("bos_token_id"), self._token_id("eos_token_id")
        begins = self._get("add_bos_token", self._pretokenizer.adds_bos) is True and bos is not None
        ends = self._get("add_eos_token") is True and eos is not None
        if not begins and not ends:
            return
        special = [(str(i), i) for i in {i for i in (bos if begins else None, eos if ends else None) if i is not None}]
        frame = ([str(bos)] if begins else []) + ["$A"] + ([str(eos)] if ends else [])
        pair = frame + [piece if piece != "$A" else "$B" for piece in frame]
        tokenizer.post_processor = TemplateProcessing(single=frame, pair=pair, special_tokens=special)

    def _read_merges(self) -> list[tuple[str, str]]:
        merges: list[tuple[str, str]] = []
        for merge in self._strings("merges"):
            left, space, right = merge.partition(" ")
            if not (left and space and right):
                raise CheckpointError(f"{self._path}: merge {merge!r} is not two tokens with a space between")
            merges.append((left, right))
        return merges

    def _token_types(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        types = self._get("token_type")
        if types is None:
            return np.ones(len(self._tokens), np.int64)
        if not isinstance(types, np.ndarray) or types.shape != (len(self._tokens),) or types.dtype.kind not in "iu":
            raise CheckpointError(
                f"{self._path}: token_type is not one number for each of the {len(self._tokens)} tokens"
            )
        return types.astype(np.int64)

    def _strings(self, key: str) -> Sequence[str]:
        strings = self._get(key)
        if not isinstance(strings, list) or not strings:
            raise CheckpointError(f"{self._path}: tokenizer.ggml.{key} is missing; convert the model to GGUF again")
        return strings

    def _of_type(self, *types: int) -> list[str]:
        return [self._tokens[i] for i in np.flatnonzero(np.isin(self._types, types)).tolist()]

    def _token_id(self, key: str) -> int | None:
        token_id = self._get(key)
        if token_id is not None and (type(token_id) is not int or not 0 <= token_id < len(self._tokens)):
            raise CheckpointError(f"{self._path}: {key} is {token_id!r}, not one of the {len(self._tokens)} token ids")
        return token_id

    def _token(self, token_id: int | None) -> str | None:
        return None if token_id is None else self._tokens[token_id]

    def _get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

"""The Checkpoint seam: weights, configuration and tokenizer of one model, whatever its files are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.special_tokens import SpecialTokens
from npuserve.errors import CheckpointError
from npuserve.quant.four_bit_rows import FourBitKind, FourBitRows

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Checkpoint(Protocol):
    """An opened checkpoint. Tensor names and `config` keys are those of Hugging Face, also for a GGUF file.

    Every method raises CheckpointError for damaged files and UnsupportedModelError for sound ones of a kind that
    is not read here. Not thread-safe; what it returned stays valid after `close`.
    """

    @property
    def path(self) -> Path: ...

    @property
    def name(self) -> str:
        """The folder's name, or the file's without its extension."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The keys of config.json."""

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """The keys of generation_config.json; empty where the checkpoint has none."""

    @property
    def special_tokens(self) -> SpecialTokens: ...

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the default chat template."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change when the checkpoint does.

        BLAKE2b over each file's metadata header, size, modification time and 64 evenly spread pages of 4 KiB;
        a cheap identity for caches, not a checksum of all bytes.
        """

    def tensor_names(self) -> Sequence[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Outer dimension first: a linear layer is (out, in)."""

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The whole tensor, dequantized into a fresh array of shape `shape(name)`."""

    def tensor_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows start..stop-1 of the outer dimension, so that a large tensor streams through little memory."""

    def four_bit_kind(self, name: str) -> FourBitKind | None:
        """What a tensor of 4-bit floats is stored as; None for any other tensor."""

    def four_bit_scales(self, name: str) -> NDArray[np.uint8]:
        """All block scales of such a tensor, [rows, blocks of a row], unchecked and read-only."""

    def four_bit_rows(self, name: str, start: int, stop: int) -> FourBitRows:
        """Rows of such a tensor as they are stored, finite, read-only; `tensor_rows` gives them dequantized."""

    def tokenizer(self) -> "Tokenizer":
        """A new tokenizer with the ids of the original one; special tokens spelled in a text are found.

        For text in which they must stay plain, set `encode_special_tokens = True` on another one; tokens that are
        added but not special (`<think>`) are found even then, as everywhere in the Hugging Face libraries.
        """

    def close(self) -> None:
        """Release the files; safe to call twice."""


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a folder of safetensors or a GGUF file. Raises CheckpointError for anything else."""
    path = Path(path)
    if path.suffix.lower() == ".safetensors" and path.is_file():
        raise CheckpointError(f"{path}: a safetensors file has no configuration; give the folder that it is in")
    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() and not (path / "config.json").exists() else []
    if len(ggufs) > 1:
        raise CheckpointError(f"{path}: holds {len(ggufs)} GGUF files; give the path of one of them")
    if path.is_dir() and not ggufs:
        from npuserve.checkpoints.safetensors_folder import SafetensorsFolder

        return SafetensorsFolder(path)
    from npuserve.checkpoints.gguf_file import GgufFile

    return GgufFile(ggufs[0], path.resolve().name) if ggufs else GgufFile(path)

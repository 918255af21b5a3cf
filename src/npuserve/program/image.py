"""The device image: a file with what stands in card memory from address 0, and the embedding the host keeps.

    page 0        JSON: magic, key, image_bytes, embedding {offset, dtype}
    page 1        DRAM image (see dram.py)
    behind it     embedding rows [vocab_size, hidden_size], float16, bfloat16 or float32, whichever loses nothing
                  the layers' own inputs, where there are such: codes, then scales (layer_inputs.py)

Where the family allows it (`ModelFacts.rotated`), matrices that read or write the hidden state are in another basis,
see rotation.py; the kept embedding is not.
It is written once per checkpoint and layout under a temporary name, synced and renamed.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import Checkpoint
from npuserve.errors import CheckpointError
from npuserve.models.facts import ModelFacts
from npuserve.program.dram import PAGE, DramLayout
from npuserve.program.geometry import WORD, round_up
from npuserve.program.image_pieces import ImagePieces
from npuserve.program.layer_inputs import LayerInputs
from npuserve.quant import int8

MAGIC = "npuserve image"
VERSION = 2
Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image file."""

    path: Path
    image_bytes: int
    embedding: NDArray[np.float16] | NDArray[np.uint16] | NDArray[np.float32]
    """[vocab_size, hidden_size], mapped; uint16 holds bfloat16 bits."""
    layer_inputs: LayerInputs | None = None


def image_key(checkpoint: Checkpoint, formats: str = "int8") -> str:
    """What must be equal for an image to be reused; `formats` describes the formats of all its matrices."""
    return f"{VERSION}-{formats}-{checkpoint.fingerprint}"


def open_image(path: Path, key: str, facts: ModelFacts) -> Image | None:
    """Map an image; None when there is none or it was built from something else."""
    try:
        with path.open("rb") as file:
            page = file.read(PAGE)
        header = json.loads(page.rstrip(b"\0"))
        if header["magic"] != MAGIC or header["key"] != key or path.stat().st_size != header["file_bytes"]:
            return None
        embedding = np.memmap(
            path,
            np.dtype(header["dtype"]),
            "r",
            header["embedding"],
            (facts.vocab_size, facts.hidden_size),
        )
        return Image(path, header["image_bytes"], embedding, _open_inputs(path, header["inputs"], facts))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open_inputs(path: Path, offset: int, facts: ModelFacts) -> LayerInputs | None:
    if not facts.input_size:
        return None
    columns = facts.num_layers * facts.input_size
    blocks = int8.num_blocks(columns)
    codes = np.memmap(path, np.int8, "r", offset, (facts.vocab_size, blocks * int8.BLOCK))
    scales = np.memmap(path, np.float32, "r", offset + codes.size, (facts.vocab_size, blocks))
    return LayerInputs(codes, scales, columns)


def build_image(
    path: Path, key: str, checkpoint: Checkpoint, facts: ModelFacts, dram: DramLayout, progress: Progress
) -> Image:
    """Quantize the checkpoint into an image at `path`, replacing what is there.

    Weights stream tensor by tensor. Raises CheckpointError for missing or misshaped tensors and when the disk
    does not take the file; nothing half-written stays.
    """
    _remove_leftovers(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with temporary.open("wb") as file:
            _write(file, key, checkpoint, facts, dram, progress)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise CheckpointError(
            f"{path}: the device image could not be written ({error.strerror}); free some disk space or set"
            " NPUSERVE_CACHE to another folder"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    image = open_image(path, key, facts)
    if image is None:
        raise CheckpointError(f"{path}: the device image changed while it was built; try again")
    return image


def _remove_leftovers(path: Path) -> None:
    """Temporary files of builds whose process was killed."""
    for leftover in path.parent.glob(f"{path.name}.*.tmp"):
        owner = leftover.name.split(".")[-2]
        if not owner.isdecimal() or not Path(f"/proc/{owner}").exists():
            leftover.unlink(missing_ok=True)


def _write(
    file: BinaryIO, key: str, checkpoint: Checkpoint, facts: ModelFacts, dram: DramLayout, progress: Progress
) -> None:
    pieces = ImagePieces(checkpoint, facts, dram)
    dtype = pieces.embedding_dtype()
    embedding_offset = PAGE + dram.image_bytes
    row_bytes = facts.hidden_size * dtype.itemsize
    inputs_offset = round_up(embedding_offset + facts.vocab_size * row_bytes, WORD)
    total = inputs_offset + facts.vocab_size * _input_row_bytes(facts)
    header = {
        "magic": MAGIC,
        "key": key,
        "image_bytes": dram.image_bytes,
        "embedding": embedding_offset,
        "inputs": inputs_offset,
        "dtype": dtype.str,
        "file_bytes": total,
    }
    file.write(json.dumps(header).encode().ljust(PAGE, b"\0"))
    for offset, data in chain(pieces.memory(dtype), pieces.layer_inputs(inputs_offset - PAGE)):
        file.seek(PAGE + offset)
        file.write(np.ascontiguousarray(data).data)
        progress(file.tell(), total)
    file.truncate(total)
    pieces.refuse_leftovers()


def _input_row_bytes(facts: ModelFacts) -> int:
    """Codes and scales of one token's own inputs to all layers."""
    return int8.num_blocks(facts.num_layers * facts.input_size) * (int8.BLOCK + WORD)

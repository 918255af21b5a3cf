"""The device image: a file with what stands in card memory from address 0, and the embedding the host keeps.

    page 0        JSON: magic, key, sizes, where the embedding stands, checksum of these and of what is behind the page
    page 1        DRAM image (see dram.py)
    behind it     embedding rows [vocab_size, hidden_size], float16, bfloat16 or float32, whichever loses nothing
                  the layers' own inputs, where there are such: codes, then scales (layer_inputs.py)

Where the family and the formats allow it (`ModelFacts.rotated`), matrices that read or write the hidden state are in
another basis, see rotation.py; the kept embedding is not. What a checkpoint has in 4 bits is taken over as it is where
`ModelFacts.takes_over` says so and the matrix's format can hold it.
It is written once per checkpoint and layout under a temporary name, synced and renamed; its checksum is compared
whenever it is opened.
"""

import fcntl
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedWriter
from itertools import chain
from pathlib import Path
from typing import Any

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
VERSION = 3
_CHUNK_BYTES = 4 << 20
_NUM_READERS = 2
_log = logging.getLogger(__name__)
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
    """Map an image; None when there is none, it was built from something else, or it is damaged, which is logged."""
    return _open(path, key, facts, lambda: _log.warning("%s is damaged; the device image is built anew", path))


def _open(path: Path, key: str, facts: ModelFacts, on_damage: Callable[[], None] = lambda: None) -> Image | None:
    try:
        with path.open("rb") as file:
            page = file.read(PAGE)
        header = json.loads(page.rstrip(b"\0"))
        if header["magic"] != MAGIC or header["key"] != key or path.stat().st_size != header["file_bytes"]:
            return None
        if _checksum(path, header) != header["checksum"]:
            on_damage()
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

    Weights stream tensor by tensor. Waits for another build in the same folder, and takes its image if that is the
    one. Raises CheckpointError for missing or misshaped tensors and when the disk does not take the file; nothing
    half-written stays.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _building(path.parent):
            if image := _open(path, key, facts):
                return image
            try:
                with temporary.open("wb") as file:
                    _write(file, key, checkpoint, facts, dram, progress)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(path)
            finally:
                with suppress(OSError):
                    temporary.unlink()
    except OSError as error:
        raise CheckpointError(
            f"{path}: the device image could not be written ({error.strerror}); free some disk space or set"
            " NPUSERVE_CACHE to another folder"
        ) from error
    image = _open(path, key, facts)
    if image is None:
        raise CheckpointError(f"{path}: the device image is not what was written; check the disk and try again")
    return image


@contextmanager
def _building(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system drops with the process: so a temporary file is this build's own."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _checksum(path: Path, header: dict[str, Any]) -> str:
    """BLAKE2b over the header and the CRC-32 of each 4 MiB behind its page. It guards against damage, not malice."""
    fields = {name: value for name, value in header.items() if name != "checksum"}
    digest = blake2b(json.dumps(fields).encode(), digest_size=16)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(_NUM_READERS, "image-checksum") as readers:
            offsets = range(PAGE, header["file_bytes"], _CHUNK_BYTES)
            for crc in readers.map(lambda offset: zlib.crc32(os.pread(descriptor, _CHUNK_BYTES, offset)), offsets):
                digest.update(crc.to_bytes(4, "little"))
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _write(
    file: BufferedWriter, key: str, checkpoint: Checkpoint, facts: ModelFacts, dram: DramLayout, progress: Progress
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
    for offset, data in chain(pieces.memory(dtype), pieces.layer_inputs(inputs_offset - PAGE)):
        file.seek(PAGE + offset)
        file.write(np.ascontiguousarray(data).data)
        progress(file.tell(), total)
    file.truncate(total)
    pieces.refuse_leftovers()
    if requantized := str(pieces.requantized):
        _log.warning("%s: %s", checkpoint.path, requantized)
    file.flush()
    header["checksum"] = _checksum(Path(file.name), header)
    file.seek(0)
    file.write(json.dumps(header).encode().ljust(PAGE, b"\0"))


def _input_row_bytes(facts: ModelFacts) -> int:
    """Codes and scales of one token's own inputs to all layers."""
    return int8.num_blocks(facts.num_layers * facts.input_size) * (int8.BLOCK + WORD)

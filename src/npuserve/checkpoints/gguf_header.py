"""The GGUF container: magic, metadata and the table of tensors, every length checked before it is used.

Layout (versions 2 and 3, little-endian; the format document of the ggml project):

    "GGUF" | u32 version | u64 number of tensors | u64 number of metadata entries
    entries: string key | u32 value type | value        (string: u64 length, UTF-8 bytes)
    tensors: string name | u32 number of dimensions | u64 each, innermost first | u32 type | u64 offset
    padding to the alignment | tensor data, offsets counted from here
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from npuserve.checkpoints.gguf_cursor import GgufCursor
from npuserve.checkpoints.mapped_file import MappedFile
from npuserve.errors import UnsupportedModelError

_MAX_DIMENSIONS = 4
_MAX_KEY_BYTES = 65_535
_MAX_NAME_BYTES = 255
_MAX_ALIGNMENT = 1 << 20
_MIN_ENTRY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class BlockType:
    """A way to store numbers: `block_size` elements in `block_bytes`; `number` stands for it in files."""

    number: int
    name: str
    block_size: int
    block_bytes: int


BLOCK_TYPES: dict[int, BlockType] = {
    number: BlockType(number, name, block_size, block_bytes)
    for number, name, block_size, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 40),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
    )
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` is outermost first, `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    block: BlockType
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata values are int, float, bool, str, a list of str, or a one-dimensional NumPy array."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    size_bytes: int


def read_header(file: MappedFile) -> GgufHeader:
    """Parse the header of a GGUF file.

    Raises CheckpointError for a file that is truncated, inconsistent or no GGUF file, UnsupportedModelError for a
    version or tensor type that is not known here. Allocates no more than a small multiple of the header's own size.
    """
    cursor = GgufCursor(file)
    num_tensors, num_entries = _read_preamble(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.string("metadata key", _MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.error(f"metadata key {key!r} stands twice")
        metadata[key] = cursor.value(cursor.integer(4), key)
    stored = [_read_tensor(cursor) for _ in range(num_tensors)]
    size_bytes = cursor.offset
    return GgufHeader(metadata, _place(cursor, stored, _alignment(cursor, metadata)), size_bytes)


def _read_preamble(cursor: GgufCursor) -> tuple[int, int]:
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise cursor.error(f"starts with {magic!r}, not b'GGUF'")
    version = cursor.integer(4)
    if version not in (2, 3):
        hint = "big-endian" if version in (2 << 24, 3 << 24) else f"version {version}"
        raise UnsupportedModelError(
            f"{cursor.file.path}: a GGUF file of {hint}; versions 2 and 3, little-endian, are read"
        )
    num_tensors = cursor.count(_MIN_TENSOR_BYTES, "tensors")
    num_entries = cursor.count(_MIN_ENTRY_BYTES, "metadata entries")
    return num_tensors, num_entries


def _alignment(cursor: GgufCursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {alignment!r}, not a power of two up to {_MAX_ALIGNMENT}")
    return alignment


def _read_tensor(cursor: GgufCursor) -> TensorInfo:
    name = cursor.string("tensor name", _MAX_NAME_BYTES)
    num_dimensions = cursor.integer(4)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {num_dimensions} dimensions, 1 to {_MAX_DIMENSIONS} are possible")
    dimensions = [cursor.integer(8) for _ in range(num_dimensions)]
    type_number = cursor.integer(4)
    block = BLOCK_TYPES.get(type_number)
    if block is None:
        raise UnsupportedModelError(
            f"{cursor.file.path}: tensor {name!r} has type number {type_number}, which is not known"
        )
    if 0 in dimensions or dimensions[0] % block.block_size:
        raise cursor.error(
            f"tensor {name!r} has dimensions {dimensions}, impossible for {block.name} in blocks of {block.block_size}"
        )
    size_bytes = prod(dimensions) // block.block_size * block.block_bytes
    return TensorInfo(name, tuple(reversed(dimensions)), block, cursor.integer(8), size_bytes)


def _place(cursor: GgufCursor, stored: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
    """Turn offsets in the data section into offsets in the file; refuse what leaves the file or overlaps."""
    data_start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in stored:
        if info.name in tensors:
            raise cursor.error(f"tensor {info.name!r} stands twice")
        if info.offset % alignment:
            raise cursor.error(f"tensor {info.name!r} is at offset {info.offset}, not a multiple of {alignment}")
        offset = data_start + info.offset
        if offset + info.size_bytes > cursor.file.size_bytes:
            raise cursor.error(
                f"tensor {info.name!r} ends at byte {offset + info.size_bytes}, past the end of the file"
            )
        tensors[info.name] = TensorInfo(info.name, info.shape, info.block, offset, info.size_bytes)
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise cursor.error(f"tensors {before!r} and {info.name!r} overlap")
        end, before = info.offset + info.size_bytes, info.name
    return tensors

"""GGUF files that are truncated, inconsistent or made to harm."""

import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.gguf_header import read_header
from npuserve.checkpoints.mapped_file import MappedFile
from npuserve.errors import CheckpointError, UnsupportedModelError
from tiny_gguf import write_gguf

STRING, ARRAY, U32, U8 = 8, 9, 4, 0


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    sizes = b"".join(struct.pack("<Q", size) for size in dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, offset)


def gguf(
    *pieces: bytes, entries: int = 0, tensors: int = 0, version: int = 3, magic: bytes = b"GGUF", data: int = 0
) -> bytes:
    header = magic + struct.pack("<IQQ", version, tensors, entries) + b"".join(pieces)
    return header + bytes(-len(header) % 32) + bytes(data)


def read(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    file = MappedFile(path)
    try:
        read_header(file)
    finally:
        file.close()


def array(kind: int, count: int, value: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + value


HOSTILE = {
    "not GGUF": gguf(magic=b"GGML"),
    "version 1": gguf(version=1),
    "version 4": gguf(version=4),
    "big-endian": gguf(version=3 << 24),
    "2^63 entries": gguf(entries=2**63),
    "2^64-1 entries": gguf(entries=2**64 - 1),
    "2^63 tensors": gguf(tensors=2**63),
    "more entries than bytes": gguf(entries=4, data=8),
    "key of 2^63 bytes": gguf(struct.pack("<Q", 2**63), entries=1, data=64),
    "key longer than the file": gguf(struct.pack("<Q", 4000), entries=1, data=64),
    "key longer than the limit": gguf(entry("k" * 70_000, U8, b"\0"), entries=1),
    "key not UTF-8": gguf(text(b"\xff\xfe") + struct.pack("<IB", U8, 0), entries=1),
    "key twice": gguf(entry("k", U8, b"\0"), entry("k", U8, b"\0"), entries=2),
    "value type 13": gguf(entry("k", 13, bytes(8)), entries=1),
    "value type 2^32-1": gguf(entry("k", 2**32 - 1, bytes(8)), entries=1),
    "string of 2^64-1 bytes": gguf(entry("k", STRING, struct.pack("<Q", 2**64 - 1)), entries=1, data=32),
    "string not UTF-8": gguf(entry("k", STRING, text(b"\x80")), entries=1),
    "array of 2^63 bytes": gguf(entry("k", ARRAY, array(U8, 2**63)), entries=1, data=64),
    "array of 2^61 words": gguf(entry("k", ARRAY, array(U32, 2**61)), entries=1, data=64),
    "array of 2^62 strings": gguf(entry("k", ARRAY, array(STRING, 2**62)), entries=1, data=64),
    "array of long strings": gguf(entry("k", ARRAY, array(STRING, 1, struct.pack("<Q", 2**40))), entries=1, data=64),
    "array of huge strings": gguf(entry("k", ARRAY, array(STRING, 1, struct.pack("<Q", 2**64 - 1))), entries=1, data=9),
    "array of bad strings": gguf(entry("k", ARRAY, array(STRING, 1, text(b"\xff"))), entries=1, data=64),
    "array of arrays": gguf(entry("k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\0"))), entries=1, data=64),
    "alignment 0": gguf(entry("general.alignment", U32, struct.pack("<I", 0)), entries=1),
    "alignment 33": gguf(entry("general.alignment", U32, struct.pack("<I", 33)), entries=1),
    "alignment 2^31": gguf(entry("general.alignment", U32, struct.pack("<I", 2**31)), entries=1),
    "alignment is text": gguf(entry("general.alignment", STRING, text("32")), entries=1),
    "0 dimensions": gguf(tensor("t", []), tensors=1, data=64),
    "5 dimensions": gguf(tensor("t", [1, 1, 1, 1, 1]), tensors=1, data=64),
    "2^32-1 dimensions": gguf(text("t") + struct.pack("<I", 2**32 - 1), tensors=1, data=64),
    "dimension 0": gguf(tensor("t", [0, 8]), tensors=1, data=64),
    "2^63 elements": gguf(tensor("t", [2**63]), tensors=1, data=64),
    "2^64 elements by product": gguf(tensor("t", [2**32, 2**32]), tensors=1, data=64),
    "2^252 elements": gguf(tensor("t", [2**63] * 4), tensors=1, data=64),
    "row not of whole blocks": gguf(tensor("t", [31], kind=2), tensors=1, data=64),
    "removed type 4": gguf(tensor("t", [32], kind=4), tensors=1, data=64),
    "type 2^32-1": gguf(tensor("t", [32], kind=2**32 - 1), tensors=1, data=64),
    "offset not aligned": gguf(tensor("t", [4], offset=8), tensors=1, data=64),
    "offset past the end": gguf(tensor("t", [4], offset=64), tensors=1, data=64),
    "offset near 2^64": gguf(tensor("t", [4], offset=2**64 - 32), tensors=1, data=64),
    "end past the end": gguf(tensor("t", [17]), tensors=1, data=64),
    "name twice": gguf(tensor("t", [4]), tensor("t", [4], offset=32), tensors=2, data=64),
    "overlap": gguf(tensor("t", [9]), tensor("u", [4], offset=32), tensors=2, data=64),
    "same place": gguf(tensor("t", [4]), tensor("u", [4]), tensors=2, data=64),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_header_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path / "x.gguf", data)
    assert "\n" not in str(caught.value)
    assert "x.gguf" in str(caught.value)


def test_tensors_side_by_side_are_taken(tmp_path: Path) -> None:
    read(tmp_path / "x.gguf", gguf(tensor("t", [8]), tensor("u", [8], offset=32), tensors=2, data=64))


@pytest.mark.parametrize("data", [gguf(version=1), gguf(tensor("t", [32], kind=77), tensors=1, data=128)])
def test_unknown_version_or_type_is_unsupported_rather_than_damaged(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UnsupportedModelError):
        read(tmp_path / "x.gguf", data)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 15, 16, 23])
def test_file_too_short_for_its_preamble_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(CheckpointError, match=r"empty|past the end"):
        read(tmp_path / "x.gguf", gguf()[:size])


def test_truncation_of_a_real_file_is_refused_everywhere(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 600, 3), *range(600, len(whole), 397), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_device_files_are_refused(path: str) -> None:
    with pytest.raises(CheckpointError, match="not a regular file"):
        MappedFile(Path(path))


@contextmanager
def address_space(extra_bytes: int) -> Iterator[None]:
    """Any single large allocation inside fails with MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def load_everything(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    try:
        for name in checkpoint.tensor_names():
            assert checkpoint.tensor(name).shape == checkpoint.shape(name)
        assert checkpoint.special_tokens is not None
        checkpoint.tokenizer().encode("the quick <|im_start|>")
        assert checkpoint.fingerprint
    finally:
        checkpoint.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_gguf(
        tmp_path_factory.mktemp("fuzz") / "sound.gguf",
        extra={
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
        },
    )
    load_everything(path)
    return path


@settings(max_examples=400, deadline=None)
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    in_header=st.booleans(),
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_damaged_file_loads_or_is_refused(
    sound: Path, flips: list[tuple[float, int]], in_header: bool, keep: float
) -> None:
    data = bytearray(sound.read_bytes())
    span = 700 if in_header else len(data)
    for where, value in flips:
        data[int(where * span)] = value
    path = sound.with_name("damaged.gguf")
    path.write_bytes(data[: int(keep * len(data))])
    with address_space(256 << 20), suppress(CheckpointError):
        load_everything(path)


VALUES: list[Any] = [["a", "b"], [1, 2], [1.5], "text", "", True, False, -1.5, 0, 1, 2**32 - 1]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_metadata_of_any_type_loads_or_is_refused(sound: Path, value: Any) -> None:
    file = MappedFile(sound)
    keys = [key for key in read_header(file).metadata if key != "general.architecture"]
    file.close()
    others = ("llama.expert_count", "llama.rope.scaling.type", "llama.attention.key_length", "general.sampling.temp")
    for key in (*keys, *others, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.padding_token_id", "general.alignment"):
        tensors: dict[str, Any] | None = {} if key == "general.alignment" else None
        path = write_gguf(sound.with_name("odd.gguf"), extra={key: value}, tensors=tensors)
        with suppress(CheckpointError):
            load_everything(path)


def test_architecture_that_is_no_text_is_refused(tmp_path: Path) -> None:
    names = struct.pack("<IQ", STRING, 1) + text("llama")
    data = gguf(entry("general.architecture", ARRAY, names), entries=1)
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(UnsupportedModelError, match="is not read"):
        open_checkpoint(tmp_path / "x.gguf")

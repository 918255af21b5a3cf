"""Folders of safetensors, made here with the safetensors library."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, models

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.errors import CheckpointError, UnsupportedModelError

CONFIG = {"model_type": "llama", "hidden_size": 4, "eos_token_id": [1, 2]}


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "<": 4, "s": 5, ">": 6}, []))
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>"), AddedToken("<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_folder(folder: Path, **tensors: NDArray[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(folder)
    save_file(tensors or {"a": np.arange(12, dtype=np.float32).reshape(4, 3)}, folder / "model.safetensors")
    return folder


def write_raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def test_values_of_every_float_type_come_back_as_float32(tmp_path: Path) -> None:
    exact = np.array([[1.5, -2.0, 0.0], [np.inf, 2.0**-14, 3.25]], np.float32)
    write_folder(
        tmp_path,
        single=exact,
        half=exact.astype(np.float16),
        scalar=np.array(7.0, np.float32),
        none=np.zeros((0, 3), np.float32),
    )
    checkpoint = open_checkpoint(tmp_path)
    for name in ("single", "half"):
        assert checkpoint.shape(name) == (2, 3)
        np.testing.assert_array_equal(checkpoint.tensor(name), exact)
        np.testing.assert_array_equal(checkpoint.tensor_rows(name, 1, 2), exact[1:])
        assert checkpoint.tensor(name).dtype == np.float32
    assert checkpoint.tensor("scalar").shape == ()
    assert checkpoint.tensor("none").shape == (0, 3)
    checkpoint.close()


def test_bf16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    write_folder(tmp_path)
    bits = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)
    write_raw(
        tmp_path / "model.safetensors",
        {"x": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}},
        bits.tobytes(),
    )
    checkpoint = open_checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.tensor("x"), [[1.0, -2.0], [np.inf, 2.0**-133]])
    checkpoint.close()


def test_tensors_outlive_close(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    values = checkpoint.tensor("a")
    checkpoint.close()
    checkpoint.close()
    values += 1
    assert values[3, 2] == 12


def test_shards_are_joined_by_the_index(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for i in (1, 2):
        save_file({f"w{i}": np.full((2,), i, np.float32)}, tmp_path / f"model-{i}.safetensors")
    index = {"weight_map": {"w1": "model-1.safetensors", "w2": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.tensor_names()) == ["w1", "w2"]
    np.testing.assert_array_equal(checkpoint.tensor("w2"), [2, 2])
    checkpoint.close()


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "..", "", "a/b.safetensors"])
def test_index_cannot_name_a_file_outside_the_folder(tmp_path: Path, shard: str) -> None:
    folder = write_folder(tmp_path / "model")
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match="not a plain file name"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors: cannot be opened"),
        ({"weight_map": {"zzz": "model.safetensors"}}, "has no tensor 'zzz'"),
        ({"weight_map": ["a"]}, "weight_map is not"),
        ({"weight_map": {"a": 3}}, "weight_map is not"),
        ({}, "weight_map is not"),
        ([], "not a JSON object"),
    ],
)
def test_bad_index_is_refused(tmp_path: Path, index: object, message: str) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"x": entry([2], 0, 8), "y": entry([2], 4, 12)},
        {"x": entry([2], 0, 8), "y": entry([1], 12, 16)},
        {"x": entry([4], 0, 16)} | {"y": entry([4], 0, 16)},
        {"x": entry([5], 0, 20)},
        {"x": entry([3], 0, 12)},
        {"x": entry([4], 0, 12)},
        {"x": entry([4], 16, 0)},
        {"x": entry([4], -16, 0)},
        {"x": entry([-4], 0, 16)},
        {"x": entry([2**63], 0, 16)},
        {"x": entry([2**63, 2**63], 0, 16)},
        {"x": entry([2**62, 2], 0, 16)},
        {"x": entry([1] * 9 + [4], 0, 16)},
        {"x": entry([4], 0, 2**63)},
        {"x": {"dtype": "F32", "shape": [4]}},
        {"x": {"dtype": 4, "shape": [4], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [4.5], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}},
        {"x": 1},
        [],
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"x":' * 100_000,
    ],
)
def test_bad_header_is_refused(tmp_path: Path, header: object) -> None:
    write_folder(tmp_path)
    write_raw(tmp_path / "model.safetensors", header, bytes(16))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("length", [17, 100, 2**31, 2**63, 2**64 - 1])
def test_header_length_past_the_end_is_refused(tmp_path: Path, length: int) -> None:
    write_folder(tmp_path)
    write_raw(tmp_path / "model.safetensors", b"{}" + b" " * 14, length=length)
    with pytest.raises(CheckpointError, match=r"reach past the end|longer than"):
        open_checkpoint(tmp_path)


def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(tmp_path)


def test_integer_weights_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, ids=np.zeros(3, np.int64)))
    with pytest.raises(UnsupportedModelError, match="'ids' is stored as I64"):
        checkpoint.tensor("ids")
    checkpoint.close()


def test_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    with pytest.raises(CheckpointError, match="no tensor 'b'"):
        checkpoint.tensor("b")
    checkpoint.close()


def test_rows_outside_the_tensor_are_a_bug_of_the_caller(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    for start, stop in ((-1, 2), (0, 5), (3, 2)):
        with pytest.raises(ValueError, match="which has 4"):
            checkpoint.tensor_rows("a", start, stop)
    checkpoint.close()


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "[" * 100_000, "\x00"])
def test_bad_config_is_refused(tmp_path: Path, text: str) -> None:
    write_folder(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: (not JSON|holds)"):
        open_checkpoint(tmp_path)


def test_config_that_is_not_text_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        open_checkpoint(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: is missing"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be opened"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="gone: cannot be opened"):
        open_checkpoint(tmp_path / "gone")


def test_stop_ids_are_collected_from_every_source(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 3, "temperature": 0.6}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}, "bos_token": "<s>"}')
    checkpoint = open_checkpoint(tmp_path)
    special = checkpoint.special_tokens
    end_of_turn = checkpoint.tokenizer().token_to_id("<|im_end|>")
    assert special.stop_ids == {1, 2, 3, end_of_turn}
    assert (special.bos, special.bos_id, special.eos, special.eos_id, special.pad) == ("<s>", 0, "</s>", 1, None)
    assert checkpoint.generation_config["temperature"] == 0.6
    checkpoint.close()


def test_special_tokens_can_be_encoded_as_text(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    tokenizer = checkpoint.tokenizer()
    assert tokenizer.encode("<s>", add_special_tokens=False).ids == [0]
    tokenizer.encode_special_tokens = True
    assert tokenizer.encode("<s>", add_special_tokens=False).ids == [4, 5, 6]
    checkpoint.close()


def test_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        checkpoint.tokenizer()
    checkpoint.close()


@pytest.mark.parametrize(
    ("value", "template"),
    [
        ("{{ x }}", "{{ x }}"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
        (3, None),
    ],
)
def test_chat_template_of_tokenizer_config(tmp_path: Path, value: object, template: str | None) -> None:
    write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.chat_template == template
    checkpoint.close()


def test_chat_template_file_wins(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.chat_template == "{{ new }}"
    checkpoint.close()


def test_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    def fingerprint() -> str:
        checkpoint = open_checkpoint(tmp_path)
        value = checkpoint.fingerprint
        checkpoint.close()
        return value

    write_folder(tmp_path)
    before = fingerprint()
    assert fingerprint() == before
    path = tmp_path / "model.safetensors"
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprint() != before


def test_name_is_the_folder(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "Tiny-1B"))
    assert checkpoint.name == "Tiny-1B"
    checkpoint.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("sound"), a=np.ones((4, 3), np.float32), b=np.ones(5, np.float16))


@settings(max_examples=300, deadline=None)
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_damaged_file_loads_or_is_refused(sound: Path, flips: list[tuple[float, int]], keep: float) -> None:
    path = sound / "model.safetensors"
    whole = path.read_bytes()
    data = bytearray(whole)
    for where, value in flips:
        data[int(where * len(data))] = value
    try:
        path.write_bytes(data[: int(keep * len(data))])
        with suppress(CheckpointError):
            checkpoint = open_checkpoint(sound)
            for name in checkpoint.tensor_names():
                assert checkpoint.tensor(name).shape == checkpoint.shape(name)
            checkpoint.close()
    finally:
        path.write_bytes(whole)

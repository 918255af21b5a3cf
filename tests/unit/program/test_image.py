import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.checkpoints.checkpoint import Checkpoint, open_checkpoint
from npuserve.errors import CheckpointError
from npuserve.models.registry import model_facts
from npuserve.program.dram import PAGE, DramLayout, Matrix
from npuserve.program.embedding import widen
from npuserve.program.geometry import Geometry
from npuserve.program.image import Image, build_image, open_image
from npuserve.program.rotation import Rotation
from npuserve.quant import int8
from tiny_checkpoint import Tensors, random_tensors, tiny_config, write_checkpoint

KEY = "key"


def prepared(folder: Path, tensors: Tensors | None = None, **changes: Any) -> tuple[Checkpoint, DramLayout]:
    config = tiny_config(**changes)
    checkpoint = open_checkpoint(write_checkpoint(folder / "model", config, tensors))
    return checkpoint, DramLayout(Geometry(model_facts(config), 256), num_slots=1, max_rows=4)


def build(folder: Path, checkpoint: Checkpoint, dram: DramLayout, key: str = KEY) -> Image:
    path = folder / "images" / "model.img"
    return build_image(path, key, checkpoint, dram.geometry.facts, dram, lambda done, total: None)


def dram_of(image: Image) -> NDArray[np.uint8]:
    return np.fromfile(image.path, np.uint8)[PAGE : PAGE + image.image_bytes]


def unpacked(memory: NDArray[np.uint8], matrix: Matrix, columns: int) -> NDArray[np.float32]:
    """A matrix of the image as the numbers it stands for."""
    codes = memory[matrix.weights : matrix.weights + matrix.n * matrix.row_stride].view(np.int8)
    scales = memory[matrix.scales : matrix.scales + matrix.n * matrix.scale_stride].view(np.float32)
    return int8.unpack(codes.reshape(matrix.n, -1), scales.reshape(matrix.n, -1), columns)


def assert_close(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal but for the rounding of int8."""
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=np.abs(expected).max() / 127)


def test_weights_stand_where_the_layout_says(tmp_path: Path) -> None:
    """Norms are folded into what reads the hidden state, and all of it is in the rotated basis."""
    tensors = random_tensors(tiny_config())
    checkpoint, dram = prepared(tmp_path, tensors)
    image = build(tmp_path, checkpoint, dram)
    assert image.image_bytes == dram.image_bytes
    memory, rotation = dram_of(image), Rotation(96)
    assert_close(
        unpacked(memory, dram.head, 96), rotation.rows(tensors["lm_head.weight"], tensors["model.norm.weight"])
    )
    norm = memory[dram.final_norm :].view(np.float32)[: dram.geometry.hidden]
    assert norm.tolist() == [1.0] * 96 + [0.0] * 32
    layer = memory[dram.layer.stride :]
    prefix = "model.layers.1."
    gate_up = np.concatenate([tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")])
    post_norm = tensors[f"{prefix}post_attention_layernorm.weight"]
    assert_close(unpacked(layer, dram.layer.gate_up, 96), rotation.rows(gate_up, post_norm))
    assert_close(unpacked(layer, dram.layer.o, 192), rotation.columns(tensors[f"{prefix}self_attn.o_proj.weight"]))
    assert_close(unpacked(layer, dram.layer.down, 160), rotation.columns(tensors[f"{prefix}mlp.down_proj.weight"]))


def test_the_score_scale_stands_in_the_weights_of_q(tmp_path: Path) -> None:
    tensors = random_tensors(tiny_config())
    checkpoint, dram = prepared(tmp_path, tensors)
    qkv = unpacked(dram_of(build(tmp_path, checkpoint, dram)), dram.layer.qkv, 96)
    q, k, v = (tensors[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv")
    scale = np.float32(np.log2(np.e) / np.sqrt(32))
    norm = tensors["model.layers.0.input_layernorm.weight"]
    assert_close(qkv, Rotation(96).rows(np.concatenate([q * scale, k, v]), norm))


def test_a_tied_head_is_the_embedding_behind_the_last_norm(tmp_path: Path) -> None:
    config = tiny_config(tie_word_embeddings=True)
    tensors = random_tensors(config)
    checkpoint, dram = prepared(tmp_path, tensors, tie_word_embeddings=True)
    image = build(tmp_path, checkpoint, dram)
    expected = Rotation(96).rows(tensors["model.embed_tokens.weight"], tensors["model.norm.weight"])
    assert_close(unpacked(dram_of(image), dram.head, 96), expected)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        (lambda rows: rows.astype(np.float16).astype(np.float32), "<f2"),
        (lambda rows: ((rows * 1e9).view(np.uint32) & 0xFFFF_0000).view(np.float32), "<u2"),
        (lambda rows: rows, "<f4"),
    ],
)
def test_the_embedding_is_kept_exactly_in_the_narrowest_type(
    tmp_path: Path, change: Callable[[NDArray[np.float32]], NDArray[np.float32]], dtype: str
) -> None:
    tensors = random_tensors(tiny_config())
    rows = tensors["model.embed_tokens.weight"] = change(tensors["model.embed_tokens.weight"])
    image = build(tmp_path, *prepared(tmp_path, tensors))
    assert image.embedding.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(widen(image.embedding), rows)


def test_an_image_is_reused_for_the_same_key_only(tmp_path: Path) -> None:
    checkpoint, dram = prepared(tmp_path)
    image = build(tmp_path, checkpoint, dram)
    assert open_image(image.path, KEY, dram.geometry.facts) is not None
    assert open_image(image.path, "other", dram.geometry.facts) is None
    assert open_image(tmp_path / "none.img", KEY, dram.geometry.facts) is None


def flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:PAGE],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: b"\0" * len(data),
        lambda data: b"[1]".ljust(PAGE, b"\0") + data[PAGE:],
        lambda data: b"{}".ljust(PAGE, b"\0") + data[PAGE:],
        lambda data: data.replace(b"npuserve image", b"somebody's img", 1),
        lambda data: data.replace(b'"dtype": "<f4"', b'"dtype": "<q9"', 1),
        lambda data: data.replace(b'"image_bytes"', b'"image-bytes"', 1),
        lambda data: data.replace(b'"embedding": ', b'"embedding": 1', 1),
        lambda data: data.replace(b'"checksum": "', b'"checksum": "x', 1),
        lambda data: flipped(data, PAGE),
        lambda data: flipped(data, len(data) // 2),
        lambda data: flipped(data, len(data) - 1),
        lambda data: data[: len(data) // 2].ljust(len(data), b"\0"),
    ],
)
def test_a_damaged_image_is_not_opened(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    checkpoint, dram = prepared(tmp_path)
    image = build(tmp_path, checkpoint, dram)
    other = tmp_path / "damaged.img"
    other.write_bytes(damage(image.path.read_bytes()))
    assert open_image(other, KEY, dram.geometry.facts) is None


def test_building_again_replaces_the_file_and_gives_the_same_bytes(tmp_path: Path) -> None:
    checkpoint, dram = prepared(tmp_path)
    path = build(tmp_path, checkpoint, dram).path
    first = path.read_bytes()
    path.write_bytes(b"half an image")
    assert build(tmp_path, checkpoint, dram).path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_builds_in_one_folder_wait_for_each_other_and_the_second_takes_the_first_ones_image(tmp_path: Path) -> None:
    checkpoint, dram = prepared(tmp_path)
    path, facts, waiting = tmp_path / "x.img", dram.geometry.facts, threading.Event()
    seconds: list[Image] = []

    def second() -> None:
        waiting.set()
        seconds.append(build_image(path, KEY, checkpoint, facts, dram, lambda done, total: pytest.fail("built twice")))

    other = threading.Thread(target=second)

    def progress(done: int, total: int) -> None:
        if not waiting.is_set():
            other.start()
            waiting.wait()

    first = build_image(path, KEY, checkpoint, facts, dram, progress)
    other.join()
    assert [image.path for image in seconds] == [first.path]
    assert [file.name for file in tmp_path.iterdir() if file.is_file() and ".img" in file.name] == ["x.img"]


def test_what_a_killed_build_left_is_not_used_and_not_kept(tmp_path: Path) -> None:
    checkpoint, dram = prepared(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "x.img.tmp").write_bytes(b"half an image" * 1000)
    image = build_image(
        tmp_path / "images" / "x.img", KEY, checkpoint, dram.geometry.facts, dram, lambda done, total: None
    )
    assert list((tmp_path / "images").iterdir()) == [image.path]


def test_progress_rises_to_the_size_of_the_file(tmp_path: Path) -> None:
    checkpoint, dram = prepared(tmp_path)
    seen: list[tuple[int, int]] = []
    image = build_image(
        tmp_path / "x.img", KEY, checkpoint, dram.geometry.facts, dram, lambda done, total: seen.append((done, total))
    )
    done = [step for step, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (image.path.stat().st_size,) * 2


def broken(name: str, value: NDArray[np.float32] | None) -> Tensors:
    tensors = random_tensors(tiny_config())
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    return tensors


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.layers.1.self_attn.k_proj.weight", np.zeros((64, 95)), r"has shape \(64, 95\).*says \(64, 96\)"),
        ("model.layers.0.mlp.down_proj.weight", np.zeros((160, 96)), r"has shape \(160, 96\).*says \(96, 160\)"),
        ("model.layers.1.input_layernorm.weight", np.ones(95), r"has shape \(95,\).*says \(96,\)"),
        ("model.norm.weight", np.ones(200), r"has shape \(200,\).*says \(96,\)"),
        ("model.norm.weight", np.ones((96, 1)), r"has shape \(96, 1\).*says \(96,\)"),
        ("model.embed_tokens.weight", np.zeros((299, 96)), r"has shape \(299, 96\).*says \(300, 96\)"),
        ("lm_head.weight", np.zeros((301, 96)), r"has shape \(301, 96\).*says \(300, 96\)"),
        ("model.layers.1.post_attention_layernorm.weight", None, ""),
        ("lm_head.weight", None, ""),
        ("model.layers.0.mlp.up_proj.weight", np.full((160, 96), np.nan), "not finite"),
        ("model.layers.0.input_layernorm.weight", np.full(96, np.inf), "not finite"),
        ("model.embed_tokens.weight", np.full((300, 96), -np.inf), "not finite"),
        ("lm_head.weight", np.full((300, 96), np.nan), "not finite"),
    ],
)
def test_a_bad_tensor_is_named_and_leaves_nothing(
    tmp_path: Path, name: str, value: NDArray[np.float64] | None, message: str
) -> None:
    checkpoint, dram = prepared(tmp_path, broken(name, None if value is None else value.astype(np.float32)))
    with pytest.raises(CheckpointError, match=f"{name}.*{message}"):
        build(tmp_path, checkpoint, dram)
    assert list((tmp_path / "images").iterdir()) == []


def test_a_full_disk_is_told_with_the_remedy_and_keeps_the_old_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, dram = prepared(tmp_path)
    old = build(tmp_path, checkpoint, dram).path

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*NPUSERVE_CACHE"):
        build(tmp_path, checkpoint, dram, "new key")
    assert [file.name for file in old.parent.iterdir()] == [old.name]
    assert open_image(old, KEY, dram.geometry.facts) is not None


def test_a_folder_that_cannot_be_made_is_told_with_the_remedy(tmp_path: Path) -> None:
    checkpoint, dram = prepared(tmp_path)
    (tmp_path / "images").write_text("a file")
    with pytest.raises(CheckpointError, match="NPUSERVE_CACHE"):
        build(tmp_path, checkpoint, dram)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    checkpoint, dram = prepared(tmp_path)

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_image(tmp_path / "images" / "x.img", KEY, checkpoint, dram.geometry.facts, dram, interrupt)
    assert list((tmp_path / "images").iterdir()) == []

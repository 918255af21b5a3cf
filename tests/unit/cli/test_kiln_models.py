"""Which files are found, and their names in the API."""

from pathlib import Path

import pytest

from npuserve.cli.kiln_models import discover, model_name, served_names


def touched(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return [folder / name for name in names]


def test_the_configured_file_wins(tmp_path: Path) -> None:
    first, second = touched(tmp_path / "a", "a.rkllm", "b.rkllm")
    assert discover(second, ".rkllm", tmp_path) == second
    assert discover(first, ".rkllm", tmp_path) == first


def test_then_the_first_by_name_beside_it_then_the_default_folder(tmp_path: Path) -> None:
    touched(tmp_path / "beside", "z.rkllm", "m.RKLLM", "a.rknn")
    (default,) = touched(tmp_path / "default", "d.rkllm")
    assert discover(tmp_path / "beside" / "gone.rkllm", ".rkllm", tmp_path) == tmp_path / "beside" / "m.RKLLM"
    assert discover(tmp_path / "nowhere" / "gone.rkllm", ".rkllm", tmp_path / "default") == default
    assert discover(None, ".rkllm", tmp_path / "default") == default
    assert discover(None, ".rknn", tmp_path / "default") is None
    assert discover(None, ".rkllm", tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3-0.6B-rk3576-w4a16.rkllm", "Qwen3-0.6B"),
        ("Qwen3-0.6B_W8A8_RK3588.rkllm", "Qwen3-0.6B"),
        ("Llama-3.2-1B-Instruct-rk3588-w8a8-opt-0.rkllm", "Llama-3.2-1B-Instruct"),
        ("Qwen2.5-1.5B-w4a16_g128-rk3576.rkllm", "Qwen2.5-1.5B"),
        ("Qwen2.5-1.5B-Instruct-rk3588-w8a8-opt-1-hybrid-ratio-0.5.rkllm", "Qwen2.5-1.5B-Instruct"),
        ("plain.rkllm", "plain"),
        ("rk3588.rkllm", "rk3588"),
        ("-rk3588.rkllm", "-rk3588"),
    ],
)
def test_a_models_name_has_no_suffixes_of_the_conversion(file: str, name: str) -> None:
    assert model_name(Path(file)) == name


def test_the_loaded_model_is_named_first_and_no_name_twice(tmp_path: Path) -> None:
    loaded, *_ = touched(tmp_path, "b-rk3588.rkllm", "a.rkllm", "b-w8a8.rkllm", "c.rknn")
    assert served_names(loaded, "b") == ["b", "a"]
    assert served_names(loaded, "mine") == ["mine", "a", "b"]

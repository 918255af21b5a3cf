"""Telling the layout of a library file."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kiln.fake_runtime import LAYOUTS, SOURCE
from npuserve.drivers.rkllm_layout import Layout, find_layout, find_library, read_only_data
from npuserve.errors import ConfigError, DeviceUnavailableError


def built(tmp_path: Path, layout: str, version: str) -> Path:
    target = tmp_path / "librkllmrt.so"
    flags = ["-shared", "-fPIC", "-pthread", f"-DLAYOUT={layout}", f'-DVERSION="{version}"']
    subprocess.run(["cc", *flags, str(SOURCE), "-o", str(target)], check=True, timeout=120)
    return target


@pytest.mark.parametrize("layout", LAYOUTS)
def test_auto_tells_each_layout(layout: str, runtime_of: Callable[[str], Path]) -> None:
    assert find_layout(runtime_of(layout), "auto") is Layout(layout)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("rkllm-runtime version: 1.2.1b1, rknpu driver version: %s", Layout.V1_2),
        ("1.2.2", Layout.V1_2),
        ("rkllm 1.3.0 built", Layout.V1_3),
        ("librkllm 1.2.3\\0 deflate 1.3.0 Copyright\\0001.2.0", Layout.V1_2),
        ("1.3.0\\0 deflate 1.2.3 Copyright 1995", Layout.V1_3),
    ],
)
def test_auto_finds_the_version_inside_a_sentence(text: str, layout: Layout, tmp_path: Path) -> None:
    assert find_layout(built(tmp_path, "130", text), "auto") is layout


@pytest.mark.parametrize(
    "text", ["no version", "1.4.0", "1.2.4", "rkllm 1.2.1 or 1.3.0", "1.2.1\\0001.3.0", "11.2.1", "1.2.10", "1.3.1"]
)
def test_a_version_that_is_not_known_is_never_guessed(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set \[llm\] runtime to 1.2 \(1.2.1 to 1.2.3\) or 1.3"):
        find_layout(built(tmp_path, "130", text), "auto")


def test_the_setting_is_taken_at_its_word(runtime_of: Callable[[str], Path]) -> None:
    assert find_layout(runtime_of("1.2"), "1.3") is Layout.V1_3


def test_an_unknown_setting_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"runtime = 2.0 is not one of auto, 1.2.0, 1.2, 1.3"):
        find_layout(Path("x"), "2.0")


def test_another_library_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "librkllmrt.so"
    (tmp_path / "other.c").write_text("int answer(void) { return 42; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "other.c"), "-o", str(target)], check=True, timeout=60)
    with pytest.raises(DeviceUnavailableError, match="exports no rkllm_init"):
        find_layout(target, "auto")


def test_a_damaged_header_means_that_the_whole_file_is_searched(runtime_of: Callable[[str], Path]) -> None:
    data = bytearray(runtime_of("1.3").read_bytes())
    assert len(read_only_data(bytes(data))) < len(data)
    data[0x28:0x30] = b"\xff" * 8
    assert read_only_data(bytes(data)) == data
    assert read_only_data(b"\x7fELF\x02\x01") == b"\x7fELF\x02\x01"


def test_a_missing_library_names_the_places(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"nowhere.so.*set \[llm\] library"):
        find_library(str(tmp_path / "nowhere.so"))

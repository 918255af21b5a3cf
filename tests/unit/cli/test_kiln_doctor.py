"""The doctor's findings on boards made of files."""

import socket
from pathlib import Path

import pytest

from npuserve.cli.kiln_arguments import parse_arguments
from npuserve.cli.kiln_doctor import Verdict, examine, report
from npuserve.cli.kiln_settings import KilnSettings


class Board:
    """A root folder with a healthy board, to be damaged by tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/device-tree").mkdir(parents=True)
        (root / "dev/dri").mkdir(parents=True)
        (root / "usr/lib").mkdir(parents=True)
        (root / "models").mkdir()
        (root / "proc/device-tree/compatible").write_text("radxa,rock-4d\0rockchip,rk3576\0")
        (root / "proc/meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n")
        (root / "dev/dri/renderD129").touch()
        self.library = root / "usr/lib/librkllmrt.so"
        self.library.write_bytes(b"\0rkllm_init\0rkllm_get_kv_cache_size\x001.2.3\0")
        self.model = root / "models/m.rkllm"
        self.model.write_bytes(b"weights")
        (root / "models/tokenizer.json").write_text("{}")

    def settings(self, *arguments: str) -> KilnSettings:
        config = self.root / "config.ini"
        config.write_text(f"[llm]\nmodel = {self.model}\nlibrary = {self.library}\n[server]\nhost=127.0.0.1\nport=0\n")
        return parse_arguments(["--config", str(config), *arguments], {})

    def findings(self, *arguments: str) -> dict[str, tuple[Verdict, str]]:
        found = examine(self.settings(*arguments), self.root)
        return {finding.part: (finding.verdict, finding.text) for finding in found}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_a_healthy_board_passes(board: Board) -> None:
    found = board.findings()
    assert {part for part, (verdict, _) in found.items() if verdict is Verdict.FAIL} == set()
    assert found["librkllmrt"][1].endswith("layout 1.2")
    assert found["board"][1].startswith("rk3576")
    assert found["memory"] == (Verdict.PASS, "4,096 MB available, about 0 MB needed")
    assert "renderD129" in found["device node"][1]
    assert found["vision model"][0] is Verdict.NOTE


def test_each_fault_has_its_line_and_remedy(board: Board) -> None:
    board.library.write_bytes(b"\0rkllm_init\0rkllm_get_kv_cache_size\0 9.9.9 \0")
    (board.root / "dev/dri/renderD129").unlink()
    (board.root / "proc/device-tree/compatible").unlink()
    (board.root / "proc/meminfo").write_text("MemAvailable: 0 kB\n")
    found = board.findings("--tokenizer", str(board.root / "none"))
    for part, words in {
        "librkllmrt": "set [llm] runtime",
        "device node": "no NPU driver",
        "board": "no Rockchip board",
        "memory": "take a smaller model",
        "tokenizer": "none",
    }.items():
        assert found[part][0] is Verdict.FAIL, part
        assert words in found[part][1]


def test_nothing_to_serve_fails(board: Board) -> None:
    board.model.unlink()
    found = board.findings()
    assert found["language model"][0] is Verdict.FAIL
    assert "librkllmrt" not in found


def test_vision_needs_its_package_library_and_labels(board: Board) -> None:
    model = board.root / "models/v.rknn"
    model.touch()
    found = board.findings("--vision-model", str(model))
    assert found["package"] == (Verdict.FAIL, "rknn-toolkit-lite2 is missing; pip install rknn-toolkit-lite2")
    assert found["librknnrt"][0] is Verdict.FAIL
    assert found["labels"][0] is Verdict.NOTE
    (board.root / "usr/lib/librknnrt.so").write_bytes(b"xx librknnrt version: 2.3.2 (429f97ae6b) yy")
    found = board.findings("--vision-model", str(model))
    assert "librknnrt.so 2.3.2; a .rknn must be made by the same" in found["librknnrt"][1]


def test_a_taken_port_fails(board: Board) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = board.findings("--port", str(taken.getsockname()[1]))
    assert found["address"][0] is Verdict.FAIL
    assert "Address already in use" in found["address"][1]


def test_the_exit_status_says_whether_anything_failed(board: Board) -> None:
    told: list[str] = []
    board.model.unlink()
    assert report(board.settings(), told.append) == 1
    assert any(line.startswith("FAIL  language model") for line in told)
    checkpoint = board.root / "model.gguf"
    checkpoint.touch()
    told.clear()
    assert report(board.settings("--model", str(checkpoint)), told.append) == 0
    assert any(line.startswith("pass  language model") for line in told)

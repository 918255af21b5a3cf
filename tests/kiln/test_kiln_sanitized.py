"""The driver on a sanitizer build of the fake runtime: no struct is short, no freed memory is read."""

import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from kiln.fake_runtime import LAYOUTS, build_runtime, words, write_model
from kiln.kiln_server import environment

PROGRAM = """
import gc, sys, threading
from pathlib import Path
from npuserve.core import SamplingParams
from npuserve.devices.rkllm import RkllmRuntime, RkllmSettings

library, layout, model = sys.argv[1:]
runtime = RkllmRuntime(RkllmSettings(Path(model), library, layout))
for number in range(20):
    said = []
    gc.collect()
    prompt = ("prompt %d " % number * 50).encode() if number % 2 else tuple(range(300))
    runtime.generate(prompt, SamplingParams(max_tokens=50), said.append)
    assert b"".join(piece.text for piece in said) == b"all is well"
runtime.close()
print("sound")
"""


def _sanitizer() -> str | None:
    found = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True, timeout=60
    )
    path = found.stdout.strip()
    return path if os.path.isabs(path) and os.path.exists(path) else None


def run_sanitized(folder: Path, library_layout: str, assumed_layout: str) -> "subprocess.CompletedProcess[str]":
    """PROGRAM on a sanitizer build of one layout, driven as another."""
    sanitizer = _sanitizer()
    if sanitizer is None:
        pytest.skip("the compiler has no address sanitizer")
    library = build_runtime(folder, library_layout, sanitize=True)
    model = write_model(folder / "m.rkllm", words("all is well"), log=folder / "log")
    extra = {"LD_PRELOAD": sanitizer, "PYTHONMALLOC": "malloc"}
    extra["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=1"
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library), assumed_layout, str(model)],
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_runs_are_sound_under_the_address_sanitizer(layout: str, tmp_path: Path) -> None:
    done = run_sanitized(tmp_path, layout, layout)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "sound\n"
    assert "VIOLATION" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("library", "assumed"), list(permutations(LAYOUTS, 2)))
def test_every_wrong_layout_is_noticed_here(library: str, assumed: str, tmp_path: Path) -> None:
    # That is what the test above is worth: a struct of the wrong shape does not pass it.
    done = run_sanitized(tmp_path, library, assumed)
    assert done.returncode != 0
    assert "sound" not in done.stdout

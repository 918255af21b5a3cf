"""The driver on a sanitizer build of the fake runtime: no struct is short, no freed memory is read."""

import os
import subprocess
import sys
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_runs_are_sound_under_the_address_sanitizer(layout: str, tmp_path: Path) -> None:
    sanitizer = _sanitizer()
    if sanitizer is None:
        pytest.skip("the compiler has no address sanitizer")
    library = build_runtime(tmp_path, layout, sanitize=True)
    model = write_model(tmp_path / "m.rkllm", words("all is well"), log=tmp_path / "log")
    extra = {
        "LD_PRELOAD": sanitizer,
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library), layout, str(model)],
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "sound\n"
    assert "VIOLATION" not in (tmp_path / "log").read_text()

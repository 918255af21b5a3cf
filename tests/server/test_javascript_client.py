"""The official JavaScript client; needs node and `npm ci` in tests/server/js."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from live_server import Script, null_state, serving
from patience import WAIT_S, wait_until

FOLDER = Path(__file__).parent / "js"
ENDLESS = 100_000


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (FOLDER / "node_modules").is_dir(), reason="run `npm ci` in tests/server/js first")
def test_javascript_client_works_unmodified_and_its_abort_frees_the_slot() -> None:
    replies: dict[str, str | list[int]] = {"France": "The capital of France is Paris. 😀", "endless": [300] * ENDLESS}
    state = null_state(Script(replies), step_delay_s=0.002, context_length=2 * ENDLESS)
    with serving(state) as served:
        ended = subprocess.run(
            ["node", "--test", "--test-reporter=tap", "client.test.mjs"],
            cwd=FOLDER,
            env={**os.environ, "NPUSERVE_URL": served.url},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        wait_until(lambda: not state.engine.stats().num_running)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "# pass 7" in ended.stdout
        assert state.engine.stats().num_tokens_out < ENDLESS

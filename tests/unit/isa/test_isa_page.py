"""docs/isa.md is what the instruction table says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_page_is_up_to_date() -> None:
    script = ROOT / "scripts" / "gen_isa_doc.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr

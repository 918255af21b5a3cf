from pathlib import Path

import pytest

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.cli.checkpoint_serving import open_isa
from npuserve.config import ServeSettings
from npuserve.sim.native import available
from tiny_checkpoint import tiny_config, write_checkpoint
from tiny_tokenizer import tiny_tokenizer


@pytest.mark.skipif(not available(), reason="the native core is not built")
def test_slots_that_do_not_fit_the_card_are_told_and_the_rest_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPUSERVE_CACHE", str(tmp_path / "images"))
    folder = write_checkpoint(tmp_path / "tiny", tiny_config(max_position_embeddings=1 << 17))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = ServeSettings(model=str(folder), slots=1000, cap=1 << 17)
    device = open_isa("otpu-serve", settings, open_checkpoint(folder))
    told = [line for line in capsys.readouterr().err.splitlines() if "no room" in line]
    assert len(told) == 1
    assert told[0].startswith("otpu-serve: there is no room for 1000 slots of 131072 tokens")
    assert told[0].endswith(f"serving {device.capabilities.num_slots} slots of 131072")
    device.close()

"""The command's output and exit status; what a pull does is tested with the checkpoints."""

from pathlib import Path
from typing import NoReturn

import pytest

from npuserve.checkpoints import download
from npuserve.checkpoints.catalog import catalog
from npuserve.cli.otpu_pull import main
from npuserve.errors import DownloadError


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPUSERVE_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "store"


def test_list_shows_every_name_and_where_it_is(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "Qwen3-0.6B").mkdir(parents=True)
    assert main(["--list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == set(catalog())
    assert lines["qwen3"].endswith(f" {models / 'Qwen3-0.6B'}")
    assert lines["smollm2"].endswith(" -")
    assert "LiquidAI/LFM2.5-230M" in lines["lfm2"]
    assert lines["gemma4-26b"].endswith(" -  [not served yet: mixtures of experts]")


def test_model_that_is_here_is_named_and_not_fetched(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "Qwen3-0.6B").mkdir(parents=True)
    assert main(["qwen3"]) == 0
    assert capsys.readouterr() == (f"{models / 'Qwen3-0.6B'}\n", "")


def test_dir_is_where_it_goes_even_if_it_is_elsewhere_too(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (models / "Qwen3-0.6B").mkdir(parents=True)
    monkeypatch.setattr(download, "pull", lambda entry, folder, progress: folder / entry.directory)
    assert main(["qwen3", "--dir", str(tmp_path / "other")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'other' / 'Qwen3-0.6B'}\n"


def test_unknown_name_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["qwen33"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("otpu-pull: model 'qwen33' is neither")
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(("error", "status"), [(DownloadError("no network"), 1), (KeyboardInterrupt(), 130)])
def test_failed_pull_is_one_line(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(download, "pull", fail)
    assert main(["smollm2"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_nothing_to_do_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "give a short name" in capsys.readouterr().err

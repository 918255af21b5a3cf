"""A checkpoint from the Hugging Face hub: only the files that are read here."""

import shutil
from pathlib import Path

from npuserve.checkpoints.catalog import CatalogEntry
from npuserve.checkpoints.progress import Progress
from npuserve.errors import DownloadError

_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model*.safetensors",
    "model.safetensors.index.json",
    "LICENSE*",
]


def fetch_snapshot(entry: CatalogEntry, partial: Path, progress: Progress) -> Path:
    """A folder below `partial` with the repository's files; half-fetched ones stay there and are resumed.

    Raises DownloadError; OSError for the disk's own refusals.
    """
    if not entry.repository:
        raise DownloadError(
            f"{entry.name}: no public repository of it is known; put its folder at ./models/{entry.directory} or give"
            " its path to --model"
        )
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # documented, not exported

    if not progress.has_bars:
        disable_progress_bars()
    folder = partial / "snapshot"
    again = f"then run 'otpu-pull {entry.name}' again"
    try:
        snapshot_download(entry.repository, local_dir=folder, allow_patterns=_FILES)
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{entry.name}: {entry.repository} asks for its licence ({entry.licence}) to be accepted; accept it on the"
            f" hub, log in with 'hf auth login', {again}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"{entry.name}: {entry.repository} is not on the hub or not public; log in, {again}"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise DownloadError(
            f"{entry.name}: the hub cannot be reached ({_first_line(error)}); check the network, {again}"
        ) from error
    except errors.HfHubHTTPError as error:
        raise DownloadError(f"{entry.name}: the hub refused ({_first_line(error)}); wait a little, {again}") from error
    except OSError:
        raise
    except Exception as error:  # the hub's HTTP library differs by version, and so do the errors that it lets through
        raise DownloadError(
            f"{entry.name}: {entry.repository} could not be fetched ({_first_line(error)}); check the network, {again}"
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return folder


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].removeprefix("Got: ") or type(error).__name__

"""The user's folders, where the environment and the system know them."""

import os
from pathlib import Path

from npuserve.errors import ConfigError


def expanded(path: str | Path) -> Path:
    """`path` with the home folder in the place of a leading ~. Raises ConfigError for that of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: that home folder is not known; give the whole path") from None


def cache_folder() -> Path:
    """$XDG_CACHE_HOME, else .cache in the home folder. Raises ConfigError when there is neither."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise ConfigError("the home folder is not known; set HOME or XDG_CACHE_HOME") from None

"""Which model files kiln-serve loads, and what it calls them."""

import re
from pathlib import Path

DEFAULT_FOLDER = Path("/opt/models")
# What conversion tools append: the chip, the quantization, the runtime's optimisation level.
_SUFFIX = re.compile(
    r"[-_.](?:rk\d{4}[a-z]?|w\d+a\d+(?:[-_]g\d+)?|g\d+|fp16|i8|opt[-_]?\d|npu\d?|hybrid[-_.]?ratio[-_.]?[\d.]+)$",
    re.IGNORECASE,
)


def discover(configured: Path | None, ending: str, default_folder: Path = DEFAULT_FOLDER) -> Path | None:
    """The configured file if it exists, else the first with `ending` in its folder, else in `default_folder`."""
    if configured is not None and configured.exists():
        return configured
    folders = [configured.parent] if configured is not None else []
    for folder in (*folders, default_folder):
        if found := model_files(folder, ending):
            return found[0]
    return None


def model_files(folder: Path, ending: str) -> list[Path]:
    """The files of `folder` with `ending`, by name; none where the folder cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() == ending and path.is_file())
    except OSError:
        return []


def served_names(loaded: Path, name: str) -> list[str]:
    """The names of the models in the folder of the `loaded` one, which is called `name`."""
    others = [path for path in model_files(loaded.parent, ".rkllm") if path != loaded]
    return [name, *sorted({model_name(path) for path in others} - {name})]


def model_name(path: Path) -> str:
    """The file's name without its ending and without the suffixes of conversion tools."""
    name = path.stem
    while (shorter := _SUFFIX.sub("", name)) != name and shorter:
        name = shorter
    return name

"""Names of classes."""

from pathlib import Path

from npuserve.errors import ConfigError

_MAX_BYTES = 4 << 20


class Labels:
    """One name per class; a class without one is called by its number."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> str:
        return self._names[index] if 0 <= index < len(self._names) else f"class {index}"


def read_labels(path: Path) -> Labels:
    """One label a line. Raises ConfigError for a file that cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} is larger than {_MAX_BYTES} bytes; this is no file of labels")
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: the labels cannot be read ({error.strerror}); set [vision] labels") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: the labels are not UTF-8 text") from error
    while lines and not lines[-1].strip():
        lines.pop()
    return Labels(tuple(line.strip() for line in lines))

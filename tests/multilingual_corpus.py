"""Lines of text in many scripts, the same on every machine with the same Python."""

import random
import sysconfig
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_SCRIPTS = (
    *("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "HEBREW", "ARABIC", "SYRIAC", "THAANA", "DEVANAGARI", "BENGALI"),
    *("GURMUKHI", "GUJARATI", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "THAI", "LAO", "TIBETAN"),
    *("MYANMAR", "GEORGIAN", "ETHIOPIC", "CHEROKEE", "KHMER", "MONGOLIAN", "HIRAGANA", "KATAKANA", "BOPOMOFO"),
    *("HANGUL", "CJK UNIFIED", "GOTHIC", "MATHEMATICAL", "EGYPTIAN"),
)
_SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\v",
    "\x85",
)
_CONTRACTIONS = ("'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'Ll", "'d", "\u2019s", "'\u017f", "''", "'")
_EMOJI = ("😀", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☃", "1️⃣")
_CODE = (
    *("def f(x):", "    return x**2", "if(a!=b){", "}", "//", "/* */", '<a href="#">', "x->y", "&&", "||", "!=", "=="),
    *(
        "0x1F",
        "1e-9",
        "3.14",
        "a_b",
        "__init__",
        "$HOME",
        "@x",
        "#!/bin/sh",
        "\\n",
        "%s",
        "{{x}}",
        "[...]",
        "...",
        "--",
    ),
)


def multilingual_lines(num_lines: int, seed: int = 0) -> list[str]:
    """Lines without special tokens: scripts mixed with digits, code, spaces, emoji, marks and contractions."""
    random_ = random.Random(seed)
    lines = list(_source_lines(num_lines // 5, random_))
    while len(lines) < num_lines:
        lines.append("".join(_piece(random_) for _ in range(random_.randint(1, 12))))
    return lines


def _piece(random_: random.Random) -> str:
    match random_.randrange(10):
        case 0 | 1 | 2:
            letters = _letters()[random_.choice(_SCRIPTS)]
            return random_.choice((" ", "")) + "".join(random_.choices(letters, k=random_.randint(1, 8)))
        case 3:
            word = "".join(random_.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ", k=random_.randint(1, 9)))
            return random_.choice((" ", "")) + word + random_.choice((*_CONTRACTIONS, "", ""))
        case 4:
            return random_.choice((" ", "")) + "".join(random_.choices("0123456789", k=random_.randint(1, 9)))
        case 5:
            return random_.choice(_SPACES) * random_.randint(1, 4)
        case 6:
            return random_.choice(_CODE)
        case 7:
            return random_.choice(_EMOJI)
        case 8:
            return random_.choice("aeıİßſﬁé") + "".join(random_.choices(_marks(), k=random_.randint(1, 3)))
        case _:
            return "".join(random_.choices(_others(), k=random_.randint(1, 4)))


@cache
def _letters() -> dict[str, list[str]]:
    """Assigned characters of each script: letters, marks and digits alike."""
    found: dict[str, list[str]] = {script: [] for script in _SCRIPTS}
    for character, name in _named():
        for script in _SCRIPTS:
            if name.startswith(script):
                found[script].append(character)
    return found


@cache
def _marks() -> list[str]:
    return [character for character, _ in _named() if unicodedata.category(character) in ("Mn", "Mc", "Me")]


@cache
def _others() -> list[str]:
    """Numbers, punctuation, symbols and formatting characters of all scripts."""
    return [character for character, _ in _named() if unicodedata.category(character)[0] in "NPSZC"]


@cache
def _named() -> list[tuple[str, str]]:
    named = ((chr(point), unicodedata.name(chr(point), "")) for point in range(0x20000))
    return [(character, name) for character, name in named if name]


def _source_lines(num_lines: int, random_: random.Random) -> Iterator[str]:
    """Lines of the standard library, tabs and trailing blanks included."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = ("argparse.py", "html/entities.py", "decimal.py", "_pydecimal.py", "this.py", "inspect.py", "pydoc.py")
    lines = [line for name in names for line in (folder / name).read_text("utf-8").splitlines(keepends=True)]
    for _ in range(num_lines):
        start = random_.randrange(len(lines))
        yield "".join(lines[start : start + random_.randint(1, 3)])

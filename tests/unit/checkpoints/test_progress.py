"""Bars for people, quiet for logs."""

import io
import sys

import pytest

from npuserve.checkpoints.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use(progress: Progress) -> None:
    progress.note("a note")
    with progress.bar("fetch", 1000) as bar:
        bar.update(1000)


def test_a_terminal_shows_notes_and_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    use(Progress())
    assert terminal.getvalue().startswith("a note\n")
    assert "fetch" in terminal.getvalue()
    assert "1.00k/1.00k" in terminal.getvalue()


def test_a_log_shows_notes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    use(Progress())
    assert log.getvalue() == "a note\n"


def test_a_silent_one_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    use(Progress(shown=False))
    assert terminal.getvalue() == ""

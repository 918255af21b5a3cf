"""Keeps grammars that would break or stall the compiler out of the server's process."""

import contextlib
import select
import subprocess
import sys
import threading
from pathlib import Path

from npuserve.errors import RequestError
from npuserve.text import grammar_probe

_TIME_LIMIT_S = 4.0
_START_LIMIT_S = 15.0


class GrammarGuard:
    """Tries each grammar in a process of its own first, which is started when it is needed and again when it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def check(self, text: str, param: str) -> None:
        """Return when compiling `text` is safe and quick. Raises RequestError when it is not; takes some seconds."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            if not self._survives(process, text):
                self.close()
                message = f"{param} is too complex to be compiled within {_TIME_LIMIT_S:g} s; simplify it"
                raise RequestError(message, param=param, code="grammar_too_complex")

    def close(self) -> None:
        """End the process; the next check starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(grammar_probe.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        # An empty grammar: the time that the interpreter takes to start is not the first client's.
        self._answers(process, b"", _START_LIMIT_S)
        return process

    def _survives(self, process: subprocess.Popen[bytes], text: str) -> bool:
        return self._answers(process, text.encode(), _TIME_LIMIT_S)

    def _answers(self, process: subprocess.Popen[bytes], data: bytes, limit_s: float) -> bool:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(data).to_bytes(8, "little") + data)
            process.stdin.flush()
        except OSError:
            return False
        # Not select: a server with many clients has file descriptors beyond what that takes.
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        return bool(waiting.poll(1e3 * limit_s)) and process.stdout.read(1) == b"."

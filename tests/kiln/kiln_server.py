"""kiln-serve as a process on the fake runtime."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from live_server import Served, serving
from npuserve.cli.kiln_arguments import parse_arguments
from npuserve.cli.kiln_parts import load_parts, server_state
from npuserve.cli.serving import key_ring
from npuserve.server.event_router import EventRouter
from patience import WAIT_S

SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class KilnServer:
    """A running server: its address, its process and what it printed before it listened."""

    url: str
    process: "subprocess.Popen[str]"
    banner: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1", **(extra or {})}


def command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "npuserve.cli.kiln_serve", "--config", str(config), *arguments]


@contextmanager
def kiln_serve(
    config: Path, *arguments: str, extra: Mapping[str, str] | None = None, status: int = 0
) -> Iterator[KilnServer]:
    """Serve until the block ends, then stop with SIGTERM and expect the exit `status`."""
    with subprocess.Popen(
        command(config, "--host", "127.0.0.1", "--port", "0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(extra),
    ) as process:
        try:
            yield KilnServer(*_listening(process))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                rest, _ = process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == status, rest


def _listening(process: "subprocess.Popen[str]") -> "tuple[str, subprocess.Popen[str], str]":
    assert process.stdout is not None
    lines: list[str] = []
    url = ""
    for line in process.stdout:
        lines.append(line)
        if "listening on " in line and "warning" not in line:
            url = line.split("listening on ")[1].split("/v1")[0].strip()
        if url and not line.strip():
            break
    if not url:
        process.wait(WAIT_S)
        raise AssertionError("".join(lines))
    # The line to copy and the empty line after it.
    lines += [process.stdout.readline(), process.stdout.readline()]
    return url, process, "".join(lines)


@contextmanager
def kiln_in_process(config: Path, *arguments: str) -> Iterator[Served]:
    """What kiln-serve serves, from a thread of this process."""
    settings = parse_arguments(["--config", str(config), "--host", "127.0.0.1", *arguments], {})
    router = EventRouter()
    parts = load_parts(settings, router)
    try:
        with serving(server_state(settings, parts, router, key_ring(settings.common))) as served:
            yield served
    finally:
        parts.close()


def write_config(path: Path, **sections: Mapping[str, object]) -> Path:
    """A configuration file of the given sections."""
    lines: list[str] = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n")
    return path

"""How long `otpu-serve` takes to listen and what memory it holds then, with and without a built image.

    python bench/start.py --model smollm2

Images are built into a temporary folder: the first start builds, the others find it. Memory is what the kernel tells of
the process: resident, and of that the part that no file backs.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass

PROMPT = "A ship came into the harbour at night. " * 33


@dataclass(frozen=True, slots=True)
class Start:
    """One start; sizes in MiB, `after` is when a prompt of some 300 tokens has been answered."""

    seconds: float
    resident_mib: int
    anonymous_mib: int
    resident_after_mib: int


def start(model: str, images: str) -> Start:
    """Start the server on any free port, ask once, stop it."""
    began = time.monotonic()
    command = [sys.executable, "-m", "npuserve.cli.otpu_serve", "--model", model, "--port", "0"]
    environment = os.environ | {"NPUSERVE_CACHE": images}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        assert server.stdout
        url = next(line.split()[-1] for line in server.stdout if "listening" in line)
        seconds = time.monotonic() - began
        resident, anonymous = memory_mib(server.pid)
        body = json.dumps({"prompt": PROMPT, "max_tokens": 16}).encode()
        request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            reply.read()
        return Start(seconds, resident, anonymous, memory_mib(server.pid)[0])
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


def memory_mib(pid: int) -> tuple[int, int]:
    """Resident memory of a process, and the part of it that is anonymous."""
    with open(f"/proc/{pid}/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
    return tuple(int(sizes[name].split()[0]) >> 10 for name in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2", help="short name, checkpoint folder or .gguf file (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="starts with a built image (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as images:
        first = start(options.model, images)
        others = [start(options.model, images) for _ in range(options.rounds)]
    if options.json:
        print(json.dumps({"first": asdict(first), "others": [asdict(other) for other in others]}))
        return
    print(f"listening, image to be built {first.seconds:8.2f} s")
    print(f"listening, image built       {statistics.median(other.seconds for other in others):8.2f} s")
    for name in ("resident_mib", "anonymous_mib", "resident_after_mib"):
        print(f"{name:28} {statistics.median(getattr(other, name) for other in others):8.0f}")


if __name__ == "__main__":
    main()

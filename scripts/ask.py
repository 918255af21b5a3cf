"""Ask a running server one question and print the streamed answer; standard library only."""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request


def wait_for(base: str, seconds: float) -> None:
    """Return once /health answers 200; exit when it does not in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"ask: {base} did not answer within {seconds:.0f} s: {error}")
            time.sleep(0.2)


def ask(base: str, question: str) -> None:
    """Print the answer as it comes."""
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "max_tokens": 64, "temperature": 0}
    request = urllib.request.Request(
        f"{base}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--base", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--wait", type=float, default=0, metavar="S", help="seconds to wait for it to be ready")
    arguments = parser.parse_args()
    wait_for(arguments.base, arguments.wait)
    ask(arguments.base, arguments.question)


if __name__ == "__main__":
    main()

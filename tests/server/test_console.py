"""The command as a process: banner, signals, exit statuses."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

import npuserve
from patience import WAIT_S
from tiny_tokenizer import tiny_tokenizer

COMMAND = Path(__file__).parent / "null_command.py"
CHAT = "/v1/chat/completions"
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


def make_checkpoint(folder: Path) -> Path:
    """A checkpoint whose weights nobody reads."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "do_sample": False}))
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    save_file({"x": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return folder


def environment() -> dict[str, str]:
    paths = [str(TESTS), str(Path(npuserve.__file__).parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


@contextmanager
def started(checkpoint: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command and its address, read off the banner."""
    command = [sys.executable, str(COMMAND), "--model", str(checkpoint), "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=checkpoint
    )
    watchdog = threading.Timer(WAIT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        banner = "".join(line for _, line in zip(range(6), process.stdout, strict=False))
        address = re.search(r"listening on (http://\S+)/v1", banner)
        assert address, banner + process.communicate()[1]
        assert f"{checkpoint.name} on isa, " in banner
        assert f"curl {address[1].replace('0.0.0.0', '127.0.0.1')}{CHAT}" in banner
        yield process, address[1]
    finally:
        process.kill()
        process.communicate()
        watchdog.cancel()


def chat(url: str) -> str:
    reply = httpx.post(url + CHAT, json={"messages": [{"role": "user", "content": "how is it?"}]}, timeout=WAIT_S)
    text = reply.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_command_serves_and_a_signal_ends_it_with_status_0(checkpoint: Path, number: signal.Signals) -> None:
    with started(checkpoint) as (process, url):
        assert chat(url) == "all is well. "
        process.send_signal(number)
        _, told = process.communicate(timeout=WAIT_S)
        assert (process.returncode, told) == (0, "")


def test_the_access_log_has_no_queries(checkpoint: Path) -> None:
    with started(checkpoint, "--log-level", "info") as (process, url):
        assert httpx.get(f"{url}/health?api_key=sk-secret").status_code == 200
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=WAIT_S)
        assert '"GET /health HTTP/1.1" 200' in output + errors
        assert "secret" not in output + errors


def test_a_warning_while_it_loads_is_a_line_of_the_log(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with started(checkpoint, "--kv-disk-gb", "1", "--kv-dir", str(tmp_path / "file")) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_S)
    assert re.match(r"20\d\d-\d\d-\d\d \S+ WARNING npuserve\.kvstore\.\S+: contexts are not saved to disk", errors)


def test_running_stream_gets_its_grace_while_new_requests_are_told_to_go(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "endless")
    (checkpoint / "hold").touch()
    body = {"messages": [{"role": "user", "content": "go"}], "stream": True, "max_tokens": 20}
    with started(checkpoint) as (process, url):
        with httpx.stream("POST", url + CHAT, json=body, timeout=WAIT_S) as stream:
            pieces = stream.iter_text()
            received = next(pieces)
            process.send_signal(signal.SIGTERM)
            while (health := httpx.get(f"{url}/health")).status_code == 200:
                pass
            assert health.json() == {"status": "stopping"}
            refused = httpx.post(url + CHAT, json=body)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            (checkpoint / "hold").unlink()
            received += "".join(pieces)
        assert '"finish_reason":"length"' in received
        assert received.endswith("data: [DONE]\n\n")
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0


def test_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "endless")
    (checkpoint / "hold").touch()
    body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
    with started(checkpoint) as (process, url), httpx.stream("POST", url + CHAT, json=body) as stream:
        pieces = stream.iter_text()
        next(pieces)
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{url}/health").status_code == 200:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 1


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(COMMAND), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=WAIT_S, check=False)


def test_taken_port_is_told_before_a_model_is_looked_for(checkpoint: Path) -> None:
    with started(checkpoint) as (_, url):
        ended = run("--model", "/no/such/model", "--port", url.rpartition(":")[2])
    assert ended.returncode == 1
    assert re.fullmatch(r"otpu-serve: error: cannot listen on .* choose another --port or --host\n", ended.stderr)


def test_missing_model_is_one_line(tmp_path: Path) -> None:
    ended = run("--model", str(tmp_path / "nothing"), "--port", "0")
    assert ended.returncode == 1
    assert re.fullmatch(r"otpu-serve: error: .*no such file or folder.*\n", ended.stderr)


def test_listening_for_others_is_warned_of(checkpoint: Path) -> None:
    with started(checkpoint, "--host", "0.0.0.0") as (process, url):
        assert chat(url.replace("0.0.0.0", "127.0.0.1")) == "all is well. "
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=WAIT_S)[1]
    assert told.startswith("otpu-serve: warning: listening on 0.0.0.0 without an API key")


def test_keys_of_file_and_flag_are_asked_for_and_no_warning_is_given(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\nalpha\n")
    options = ["--host", "0.0.0.0", "--api-key-file", str(file), "--api-key", "beta,gamma"]
    with started(checkpoint, *options) as (process, url):
        url = url.replace("0.0.0.0", "127.0.0.1")
        statuses = [httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code for key in ("alpha", "gamma")]
        assert [*statuses, httpx.get(f"{url}/v1/models").status_code] == [200, 200, 401]
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=WAIT_S)[1] == ""


def test_grace_is_as_long_as_it_was_set(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "endless")
    body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
    with (
        started(checkpoint, "--cap", "100000", "--grace", "0", "--allow-host", "proxy.example") as (process, url),
        httpx.stream("POST", url + CHAT, json=body, headers={"Host": "proxy.example"}) as stream,
    ):
        pieces = stream.iter_text()
        received = next(pieces)
        process.send_signal(signal.SIGTERM)
        received += "".join(pieces)
        assert "the server stopped before the reply was complete" in received
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-cert", "/no/such", "--tls-key", "/no/such"], "--tls-cert /no/such cannot be read"),
        (["--api-key-file", "/no/such"], "--api-key-file /no/such cannot be read"),
        (["--api-key", "two words"], "API key 1 has a space"),
    ],
)
def test_wrong_keys_and_certificates_are_told_before_a_model_is_looked_for(options: list[str], message: str) -> None:
    ended = run("--model", "/no/such/model", "--port", "0", *options)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"otpu-serve: error: {message}")
    assert ended.stderr.count("\n") == 1

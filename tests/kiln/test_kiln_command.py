"""kiln-serve as a command: banner, signals, exit statuses, modes."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kiln.fake_runtime import words, write_model
from kiln.kiln_server import command, environment, kiln_serve, write_config
from patience import WAIT_S, wait_until


def finished(config: Path, *arguments: str, **extra: str) -> "subprocess.CompletedProcess[str]":
    """A start that is expected to fail."""
    return subprocess.run(
        command(config, "--host", "127.0.0.1", "--port", "0", *arguments),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(extra),
    )


def test_the_banner_and_a_stop_signal_that_lets_a_running_reply_end(
    runtime_of: Callable[[str], Path], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    model = write_model(tmp_path / "Qwen2.5-1.5B-rk3588-w8a8.rkllm", words("a b c d"), hold_after=2, gate=gate)
    config = write_config(tmp_path / "config.ini", llm={"model": model, "library": runtime_of("1.2")})
    with kiln_serve(config) as server, ThreadPoolExecutor(1) as pool:
        assert "kiln-serve: Qwen2.5-1.5B (" in server.banner
        assert "runtime layout 1.2\n" in server.banner
        assert "ignores the sampling values of requests; [llm] sampling = host" in server.banner
        assert f"listening on {server.url}/v1" in server.banner
        assert f'client = OpenAI(base_url="{server.url}/v1", api_key="not-needed")' in server.banner
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        running = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body, timeout=WAIT_S)
        wait_until(lambda: bool(httpx.get(f"{server.url}/v1/stats").json()["running"]))
        server.process.terminate()
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
        gate.touch()
        assert running.result(WAIT_S).json()["choices"][0]["message"]["content"] == "a b c d"
        server.process.wait(WAIT_S)


def test_a_reader_that_leaves_before_the_banner_does_not_stop_the_server(
    runtime_of: Callable[[str], Path], tmp_path: Path
) -> None:
    llm = {"model": write_model(tmp_path / "m.rkllm"), "library": runtime_of("1.2")}
    config = write_config(tmp_path / "config.ini", llm=llm)
    arguments = ["--host", "127.0.0.1", "--port", "0"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unit:
        unit.bind(str(tmp_path / "notify"))
        unit.settimeout(WAIT_S)
        extra = environment({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        with subprocess.Popen(command(config, *arguments), stdout=subprocess.PIPE, env=extra) as process:
            assert process.stdout is not None
            process.stdout.close()
            url = unit.recv(500).decode().partition("listening on ")[2]
            assert httpx.get(f"{url}/health").status_code == 200
            process.terminate()
            assert process.wait(WAIT_S) == 0


def test_nothing_to_serve_exits_1_and_names_the_file(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.ini", llm={"model": tmp_path / "none.rkllm"})
    done = finished(config)
    assert done.returncode == 1
    assert str(config) in done.stderr
    assert "none.rkllm: no such file" in done.stderr


def test_a_runtime_that_refuses_the_model_exits_1_with_the_reason(
    runtime_of: Callable[[str], Path], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m.rkllm", fail_init=-3)
    config = write_config(tmp_path / "config.ini", llm={"model": model, "library": runtime_of("1.3")})
    done = finished(config)
    assert done.returncode == 1
    assert "rkllm_init returned -3" in done.stderr


@pytest.mark.parametrize("layout", ["1.2.0", "1.2", "1.3"])
def test_host_sampling_without_a_tokenizer_is_a_wrong_setting(
    layout: str, runtime_of: Callable[[str], Path], tmp_path: Path
) -> None:
    llm = {"model": write_model(tmp_path / "m.rkllm"), "library": runtime_of(layout), "sampling": "host"}
    done = finished(write_config(tmp_path / "config.ini", llm=llm))
    assert done.returncode == 2
    assert "tokenizer.json" in done.stderr


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    llm = {"model": write_model(tmp_path / "m.rkllm"), "library": tmp_path / "librkllmrt.so"}
    done = finished(write_config(tmp_path / "config.ini", llm=llm))
    assert done.returncode == 1
    assert "librkllmrt.so was not found" in done.stderr


def test_the_simulator_is_never_a_fallback(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    config = write_config(tmp_path / "config.ini", llm={"model": tmp_path / "model.rkllm"})
    done = finished(config)
    assert done.returncode == 1
    assert "model.rkllm: no such file" in done.stderr


def test_a_taken_port_is_told_first(tmp_path: Path, free_port_taken: int) -> None:
    config = write_config(tmp_path / "config.ini", llm={"model": tmp_path / "none.rkllm"})
    done = finished(config, "--port", str(free_port_taken))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {free_port_taken}" in done.stderr


def test_an_unknown_option_exits_2(tmp_path: Path) -> None:
    done = finished(write_config(tmp_path / "config.ini"), "--modell", "x")
    assert done.returncode == 2
    assert "see kiln-serve --help" in done.stderr


@pytest.mark.parametrize("grace", [0, 1000])
def test_an_npu_that_was_given_up_ends_the_server_with_1_after_its_grace(
    grace: int, runtime_of: Callable[[str], Path], tmp_path: Path
) -> None:
    llm = {"model": write_model(tmp_path / "m.rkllm", fail_run=-7), "library": runtime_of("1.3")}
    config = write_config(tmp_path / "config.ini", llm=llm, server={"grace": grace})
    with kiln_serve(config, status=1) as server:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        for _ in range(3):
            assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=WAIT_S).status_code == 500
        if grace:
            health = httpx.get(f"{server.url}/health")
            assert (health.status_code, health.json()) == (503, {"status": "failed"})
        else:
            server.process.wait(WAIT_S)


def test_an_idle_server_is_small(runtime_of: Callable[[str], Path], tmp_path: Path) -> None:
    model = write_model(tmp_path / "Qwen3-0.6B.rkllm", words("all is well"))
    config = write_config(tmp_path / "config.ini", llm={"model": model, "library": runtime_of("1.3")})
    with kiln_serve(config) as server:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=WAIT_S).status_code == 200
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
    assert resident_kb < 120_000


def test_starting_imports_no_vision_runtime_and_no_oracle() -> None:
    late = {"torch", "transformers", "onnxruntime", "PIL", "rknnlite", "huggingface_hub"}
    program = f"import sys, npuserve.cli.kiln_parts\nprint(sorted({late!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, env=environment(), check=True
    )
    assert done.stdout == "[]\n"


def test_the_doctor_examines_what_the_command_would_use(runtime_of: Callable[[str], Path], tmp_path: Path) -> None:
    llm = {"model": write_model(tmp_path / "m.rkllm"), "library": runtime_of("1.2")}
    config = write_config(tmp_path / "config.ini", llm=llm)
    done = subprocess.run(
        [sys.executable, "-m", "npuserve.cli.kiln_serve", "doctor", "--config", str(config), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment(),
    )
    assert f"pass  librkllmrt: {runtime_of('1.2')}, layout 1.2" in done.stdout
    assert "FAIL  board: this is no Rockchip board" in done.stdout
    assert done.returncode == 1


def test_systemd_is_told_when_the_server_listens(runtime_of: Callable[[str], Path], tmp_path: Path) -> None:
    llm = {"model": write_model(tmp_path / "m.rkllm"), "library": runtime_of("1.2")}
    config = write_config(tmp_path / "config.ini", llm=llm)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unit:
        unit.bind(str(tmp_path / "notify"))
        unit.settimeout(WAIT_S)
        with kiln_serve(config, extra={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert unit.recv(500).decode() == f"READY=1\nSTATUS=listening on {server.url}"


@pytest.mark.slow
def test_it_installs_and_starts_without_a_compiler(runtime_of: Callable[[str], Path], tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    shutil.copytree(root / "src", tmp_path / "project/src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(root / "csrc", tmp_path / "project/csrc")
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(root / name, tmp_path / "project" / name)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    none = {"CC": "/bin/false", "CXX": "/bin/false", "PYTHONPATH": ""}
    pip = [str(tmp_path / "venv/bin/pip"), "install", "--quiet", str(tmp_path / "project")]
    subprocess.run(pip, check=True, timeout=600, env={**os.environ, **none})
    llm = {"model": write_model(tmp_path / "m.rkllm"), "library": runtime_of("1.2")}
    config = write_config(tmp_path / "config.ini", llm=llm)
    arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(
        [str(tmp_path / "venv/bin/kiln-serve"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **none},
    ) as process:
        assert process.stdout is not None
        assert any("listening on" in line for line in iter(process.stdout.readline, ""))
        process.terminate()
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0

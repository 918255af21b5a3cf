import subprocess
import sys
from dataclasses import fields

import pytest

from npuserve.cli.otpu_serve import main
from npuserve.cli.serve_arguments import parse_arguments
from npuserve.config import ServeSettings, flag_of, option_of
from npuserve.errors import ConfigError

# The options of the otpu-serve page, with the defaults that it gives.
PAGE: dict[str, object] = {
    "--model": "qwen3",
    "--backend": "isa",
    "--dev": "/dev/xdma0",
    "--host": "127.0.0.1",
    "--port": 8000,
    "--cap": 2048,
    "--served-model-name": None,
    "--wformat": "auto",
    "--head-format": None,
    "--slots": 8,
    "--max-running": 8,
    "--chunked-prefill-size": 64,
    "--mixed": False,
    "--quantum": 32,
    "--max-queue": 256,
    "--kv-ram-gb": 4,
    "--kv-disk-gb": 0,
    "--kv-dir": "~/otpu-build/kvcache",
    "--think": False,
    "--reasoning-parser": None,
    "--api-key": None,
    "--pool": None,
    "--mtp": False,
    "--mtp-from": None,
    "--max-slices": 9,
    "--image-fetch": False,
    "--warm-cap": 300,
}


def parse(*arguments: str, **environment: str) -> ServeSettings:
    return parse_arguments(arguments, environment)


def test_every_option_of_the_page_exists_with_its_default() -> None:
    ours = {flag_of(setting): setting.default for setting in fields(ServeSettings)}
    assert {flag: ours[flag] for flag in PAGE} == PAGE


def test_flags_become_settings() -> None:
    settings = parse("--model", "smollm2", "--port", "8001", "--cap=512", "--slots", "2", "--mixed", "--think")
    expected = ServeSettings(model="smollm2", port=8001, cap=512, slots=2, mixed=True, think=True)
    assert settings == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port 70000 is out of range; it must be from 0 to 65,535"),
        (["--port", "-1"], "--port -1 is out of range"),
        (["--cap", "0"], "--cap 0 is out of range; it must be from 1 to 1,048,576"),
        (["--slots", "0"], "--slots 0 is out of range"),
        (["--slots", "two"], "--slots two is not an integer"),
        (["--slots", "2.5"], "--slots 2.5 is not an integer"),
        (["--max-queue", "-1"], "--max-queue -1 is out of range"),
        (["--chunked-prefill-size", "0"], "--chunked-prefill-size 0 is out of range"),
        (["--kv-ram-gb", "nan"], "--kv-ram-gb nan is not a number"),
        (["--kv-ram-gb", "-1"], "--kv-ram-gb -1 is out of range"),
        (["--warm-cap", "-1"], "--warm-cap -1 is out of range; it must be 0 or more"),
        (["--max-slices", "37"], "--max-slices 37 is out of range; it must be from 0 to 36"),
        (["--backend", "gpu"], "--backend gpu is not one of isa, board, board-sim"),
        (["--wformat", "int9"], "--wformat int9 is not one of auto, int8, fp4, int4, nvfp4, mix"),
        (["--log-level", "loud"], "--log-level loud is not one of"),
        (["--threads", "257"], "--threads 257 is out of range; it must be from 0 to 256"),
        (["--cors-origin", "chat.example"], "--cors-origin 'chat.example' is no origin; give scheme://host"),
        (["--cors-origin", "https://chat.example/"], "--cors-origin 'https://chat.example/' is no origin"),
        (["--cors-origin", "*,https://a\r\nb: c"], "--cors-origin 'https://a\\r\\nb: c' is no origin"),
        (["--allow-host", "https://proxy.example"], "--allow-host 'https://proxy.example' is no host name"),
        (["--allow-host", "proxy.example:8080"], "--allow-host 'proxy.example:8080' is no host name"),
        (["--served-model-name", "a\x1b[2J"], "--served-model-name 'a\\x1b[2J' has characters that cannot be printed"),
        (["--served-model-name", "a\udcff"], "--served-model-name 'a\\udcff' has characters that cannot be printed"),
        (["--api-key-file", "~no-such-user/keys"], "~no-such-user/keys: that home folder is not known"),
        (["--model", ""], "--model is empty"),
        (["--no-such"], "unrecognized arguments: --no-such; see otpu-serve --help"),
        (["--port"], "argument --port: expected one argument"),
        (["--mod", "x"], "unrecognized arguments"),
    ],
)
def test_wrong_value_is_one_line_with_value_and_range(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"otpu-serve: error: {message}")
    assert told.count("\n") == 1


def test_origins_and_hosts_in_their_forms_are_taken() -> None:
    origins = (
        "https://chat.example",
        "http://localhost:3000",
        "http://[::1]:80",
        "chrome-extension://abc",
        "null",
        "*",
    )
    settings = parse_arguments(["--cors-origin", ",".join(origins), "--allow-host", "proxy.example,10.0.0.1,::1"], {})
    assert settings.cors_origin == origins
    assert settings.allow_host == ("proxy.example", "10.0.0.1", "::1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--backend", "board"],
        ["--backend", "board-sim"],
        ["--dev", "/dev/xdma1"],
        ["--pool", "file"],
        ["--mtp"],
        ["--mtp-from", "dir"],
        ["--max-slices", "3"],
        ["--image-fetch"],
        ["--warm-cap", "3"],
    ],
)
def test_option_without_its_part_is_refused_even_with_its_default(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"^{arguments[0]}.*is not available in this version yet$"):
        parse(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--backend", "isa"],
        ["--reasoning-parser", "qwen3"],
    ],
)
def test_value_that_needs_nothing_unbuilt_is_taken(arguments: list[str]) -> None:
    parse(*arguments)


def test_keys_are_gathered_from_repeats_and_commas_and_else_from_the_environment() -> None:
    assert parse("--api-key", "a, b", "--api-key", "c").api_key == ("a", "b", "c")
    assert parse(OTPU_API_KEY="x,y").api_key == ("x", "y")
    assert parse("--api-key", "a", OTPU_API_KEY="x").api_key == ("a",)
    assert parse(OTPU_API_KEY="") == ServeSettings()
    with pytest.raises(ConfigError, match=r"^--api-key is empty"):
        parse("--api-key", " ,")


@pytest.mark.parametrize(("flag", "other"), [("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")])
def test_half_of_tls_is_refused(flag: str, other: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} needs {other} as well"):
        parse(flag, "file.pem")


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(flag_of(setting) in shown for setting in fields(ServeSettings))
    assert all(option_of(setting).help.split()[0] in shown for setting in fields(ServeSettings))


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom npuserve.cli.otpu_serve import main\n"
        "try: main(['--version'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'uvicorn', 'starlette', 'asyncio', 'tokenizers', 'jinja2', 'msgspec'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"

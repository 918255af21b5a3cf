"""kiln-serve's settings: file, flags, environment, and which wins."""

from pathlib import Path

import pytest

from npuserve.cli.kiln_arguments import parse_arguments
from npuserve.cli.kiln_ini import read_ini
from npuserve.cli.kiln_settings import KilnSettings, common_settings, ini_place, own_settings
from npuserve.errors import ConfigError

# Kiln's table of keys and defaults.
CONTRACT: dict[tuple[str, str], object] = {
    ("llm", "model"): None,
    ("llm", "system_prompt"): None,
    ("llm", "max_context_len"): 2048,
    ("llm", "max_new_tokens"): 512,
    ("llm", "temperature"): 0.7,
    ("llm", "top_k"): 1,
    ("llm", "top_p"): 0.8,
    ("llm", "repeat_penalty"): 1.3,
    ("llm", "frequency_penalty"): 0.0,
    ("llm", "presence_penalty"): 0.0,
    ("llm", "keep_history"): 1,
    ("llm", "n_keep"): -1,
    ("llm", "embed_flash"): 1,
    ("vision", "model"): None,
    ("vision", "labels"): "/opt/models/imagenet_labels.txt",
    ("vision", "top_n"): 5,
    ("vision", "core_mask"): "auto",
    ("vision", "priority"): "high",
    ("vision", "task"): "classify",
    ("vision", "detector"): "auto",
    ("vision", "conf_threshold"): 0.25,
    ("vision", "nms_iou"): 0.45,
    ("server", "host"): "0.0.0.0",
    ("server", "port"): 8080,
    ("server", "llm_model"): None,
    ("server", "vision_model"): None,
}


def parsed(text: str, tmp_path: Path, *arguments: str, **environment: str) -> KilnSettings:
    (tmp_path / "config.ini").write_text(text)
    return parse_arguments(["--config", str(tmp_path / "config.ini"), *arguments], environment)


def value_at(settings: KilnSettings, place: tuple[str, str]) -> object:
    for setting in own_settings():
        if ini_place(setting) == place:
            return getattr(settings, setting.name)
    return getattr(settings.common, place[1])


@pytest.mark.parametrize("place", CONTRACT)
def test_every_key_of_the_contract_has_its_default(place: tuple[str, str], tmp_path: Path) -> None:
    assert value_at(parsed("", tmp_path), place) == CONTRACT[place]


@pytest.mark.parametrize("place", CONTRACT)
def test_every_key_of_the_contract_is_read(place: tuple[str, str], tmp_path: Path) -> None:
    section, key = place
    default = CONTRACT[place]
    chosen = {"core_mask": "0_1", "priority": "low", "task": "detect", "detector": "yolox"}
    given: object = chosen.get(key, "/some/path")
    if isinstance(default, float):
        given = 0.5
    elif isinstance(default, int):
        given = {"keep_history": 0, "embed_flash": 0, "n_keep": 7}.get(key, 64)
    assert value_at(parsed(f"[{section}]\n{key} = {given}\n", tmp_path), place) == given


def test_a_missing_default_file_means_the_defaults(tmp_path: Path) -> None:
    assert read_ini(tmp_path / "none.ini") == {}


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    for arguments, environment in (
        (["--config", str(tmp_path / "none.ini")], {}),
        ([], {"KILN_CONFIG": str(tmp_path / "none.ini")}),
    ):
        with pytest.raises(ConfigError, match=r"none.ini: no such file"):
            parse_arguments(arguments, environment)


def test_the_environment_names_the_file_and_the_flag_wins_over_it(tmp_path: Path) -> None:
    (tmp_path / "a.ini").write_text("[server]\nport = 1111\n")
    (tmp_path / "b.ini").write_text("[server]\nport = 2222\n")
    environment = {"KILN_CONFIG": str(tmp_path / "a.ini")}
    assert parse_arguments([], environment).common.port == 1111
    assert parse_arguments(["--config", str(tmp_path / "b.ini")], environment).common.port == 2222


def test_comments_spaces_and_foreign_lines(tmp_path: Path) -> None:
    text = """\
# a comment
; another
key_without_section = 1
just words
[LLM]
   Model =  /m/x.rkllm   # the model
system_prompt = Item#1; be brief.   # not this
temperature=0.5
unknown_key = left alone
[chat]
color = red
[vision
labels = broken section header stays in [chat]
[server]
port = 9000
host =
port = 9001
"""
    settings = parsed(text, tmp_path)
    assert settings.model == "/m/x.rkllm"
    assert settings.system_prompt == "Item#1; be brief."
    assert settings.temperature == 0.5
    assert settings.labels == "/opt/models/imagenet_labels.txt"
    assert settings.common.port == 9001
    assert settings.common.host == "0.0.0.0"


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    text = "[llm]\nmodel = a.rkllm\ntop_k = 3\n[server]\nllm_model = b.rkllm\nvision_model = v.rknn\nport = 1\n"
    settings = parsed(text, tmp_path, "--port", "5", "--top-k", "9")
    assert (settings.common.port, settings.top_k, settings.llm_path) == (5, 9, Path("b.rkllm"))
    assert settings.vision_path == Path("v.rknn")
    settings = parsed(text, tmp_path, "--model", "c.rkllm", "--vision-model", "w.rknn")
    assert (settings.llm_path, settings.vision_path) == (Path("c.rkllm"), Path("w.rknn"))


def test_the_common_servers_options_are_keys_and_flags(tmp_path: Path) -> None:
    text = """\
[server]
api_key = one, two
cors_origin = https://a.example,https://b.example
max_queue = 3
think = yes
share_cache = off
request_timeout = 2.5
"""
    common = parsed(text, tmp_path, "--log-level", "error").common
    assert common.api_key == ("one", "two")
    assert common.cors_origin == ("https://a.example", "https://b.example")
    assert (common.max_queue, common.think, common.share_cache) == (3, True, False)
    assert (common.request_timeout, common.log_level) == (2.5, "error")
    assert parsed("", tmp_path).common.cors_origin == ("*",)
    assert parsed("[server]\ncors_origin = none\n", tmp_path).common.cors_origin is None


def test_a_key_from_the_environment(tmp_path: Path) -> None:
    assert parsed("", tmp_path, KILN_API_KEY="sesame").common.api_key == ("sesame",)
    assert parsed("", tmp_path, "--api-key", "other", KILN_API_KEY="sesame").common.api_key == ("other",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[llm]\ntemperature = hot\n", r"config.ini: \[llm\] temperature = hot is not a number"),
        ("[llm]\ntemperature = nan\n", r"\[llm\] temperature = nan is not a number"),
        ("[llm]\ntop_k = 1.5\n", r"\[llm\] top_k = 1.5 is not an integer"),
        ("[llm]\ntop_p = 1.5\n", r"\[llm\] top_p = 1.5 is out of range; it must be from 0.001 to 1"),
        ("[llm]\nmax_context_len = 99999\n", r"must be from 16 to 16384"),
        ("[llm]\nruntime = 2\n", r"\[llm\] runtime = 2 is not one of auto, 1.2.0, 1.2, 1.3"),
        ("[vision]\ntask = dream\n", r"\[vision\] task = dream is not one of classify, detect"),
        ("[server]\nport = 99999\n", r"port 99999 is out of range"),
        ("[server]\nthink = perhaps\n", r"think = perhaps is not one of"),
        ("[server]\ntls_cert = x.pem\n", r"--tls-cert needs --tls-key"),
    ],
)
def test_wrong_values_name_the_file_the_key_and_the_limit(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(text, tmp_path)


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.ini"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_ini(path)
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="no configuration file"):
        read_ini(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ini(tmp_path)


def test_no_two_options_share_a_flag_or_a_key() -> None:
    settings = [*own_settings(), *common_settings()]
    assert len({setting.name for setting in settings}) == len(settings)
    assert len({ini_place(setting) for setting in settings}) == len(settings)


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--help"], {})
    assert caught.value.code == 0
    told = capsys.readouterr().out
    for word in ("--model", "--vision-model", "--conf-threshold", "--api-key-file", "--tls-cert", "KILN_API_KEY"):
        assert word in told
    assert "OTPU" not in told


def test_endless_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="/dev/zero is larger than 1048576 bytes"):
        parse_arguments(["--config", "/dev/zero"], {})

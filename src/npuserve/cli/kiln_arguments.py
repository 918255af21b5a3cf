"""kiln-serve's settings from command line over environment over configuration file over defaults."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from npuserve import __version__
from npuserve.cli.kiln_ini import DEFAULT_PATH, read_ini
from npuserve.cli.kiln_settings import COMMON_DEFAULTS, KilnSettings, common_settings, ini_place, own_settings
from npuserve.cli.option_values import converted, separated
from npuserve.config import Option, ServeSettings, check, flag_of, option_of
from npuserve.errors import ConfigError
from npuserve.home import expanded

_DESCRIPTION = "Serve a Rockchip NPU's language and vision models over an OpenAI-compatible HTTP API."
_EPILOG = """\
examples:
  kiln-serve                                     what /etc/kiln/config.ini says
  kiln-serve --model /opt/models/qwen3.rkllm --port 8080
  kiln-serve --model smollm2.gguf                without an NPU, on the instruction-set simulator
  kiln-serve doctor                              what is missing on this board

Every option but --config can stand in the configuration file, as a key of the section that it is listed under;
those of the common server under [server], with underscores: api_key_file = /etc/kiln/keys
"""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_API_KEY = "KILN_API_KEY"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see kiln-serve --help")


def parse_arguments(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> KilnSettings:
    """The settings. Raises ConfigError; exits for --help and --version."""
    texts: dict[str, Any] = vars(_parser().parse_args(arguments))
    path, must_exist = _config_path(texts.pop("config", None), environment)
    file = read_ini(path, must_exist=must_exist)
    # --model and --vision-model win over the file's [server] keys as well.
    for flag, key in (("model", "llm_model"), ("vision_model", "vision_model")):
        if flag in texts:
            file.pop(("server", key), None)
    own = _values(own_settings(), texts, file, path, get_type_hints(KilnSettings))
    if environment.get(_API_KEY) and "api_key" not in texts:
        texts["api_key"] = environment[_API_KEY]
    common = _values(common_settings(), texts, file, path, get_type_hints(ServeSettings))
    if common.get("cors_origin") == ("none",):
        common["cors_origin"] = None
    settings = KilnSettings(**own, config_path=path, common=ServeSettings(**{**COMMON_DEFAULTS, **common}))
    check(settings.common, common.keys())
    check_own(settings)
    return settings


def check_own(settings: KilnSettings) -> None:
    """Raise ConfigError for a value of Kiln's own keys that is out of its range or choices."""
    for setting in own_settings():
        value, option = getattr(settings, setting.name), option_of(setting)
        name = "[{}] {}".format(*ini_place(setting))
        if option.choices and value not in option.choices:
            raise ConfigError(f"{name} = {value} is not one of {', '.join(option.choices)}")
        if isinstance(value, int | float):
            low, high = option.least, option.most
            if (low is not None and value < low) or (high is not None and value > high):
                bounds = f"{low:g} or more" if high is None else f"from {low:g} to {high:g}"
                raise ConfigError(f"{name} = {value:g} is out of range; it must be {bounds}")


def _config_path(flag: str | None, environment: Mapping[str, str]) -> tuple[Path, bool]:
    """A file that was asked for must be there; the default one need not."""
    chosen = flag or environment.get("KILN_CONFIG")
    return (expanded(chosen), True) if chosen else (DEFAULT_PATH, False)


def _values(
    settings: "list[Field[Any]]",
    texts: Mapping[str, Any],
    file: Mapping[tuple[str, str], str],
    path: Path,
    kinds: Mapping[str, Any],
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in settings:
        section, key = ini_place(setting)
        if setting.name in texts:
            values[setting.name] = _converted(flag_of(setting), texts[setting.name], setting, kinds)
        elif (section, key) in file:
            values[setting.name] = _converted(f"{path}: [{section}] {key} =", file[section, key], setting, kinds)
    return values


def _converted(name: str, text: Any, setting: "Field[Any]", kinds: Mapping[str, Any]) -> Any:
    kind = kinds[setting.name]
    if option_of(setting).repeated:
        return separated(text)
    if kind is bool:
        if text is True or str(text).lower() in _TRUE:
            return True
        if str(text).lower() in _FALSE:
            return False
        raise ConfigError(f"{name} {text} is not one of {', '.join((*_TRUE, *_FALSE))}")
    return converted(name, text, kind)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kiln-serve",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kiln-serve (npuserve) {__version__}")
    parser.add_argument("--config", metavar="FILE", help=f"configuration file (default: $KILN_CONFIG, {DEFAULT_PATH})")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in (*own_settings(), *common_settings()):
        option = option_of(setting)
        title = f"[{option.group}]" if "key" in setting.metadata else f"[server], {option.group}"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add(groups[title], setting, option)
    return parser


def _add(group: argparse._ArgumentGroup, setting: "Field[Any]", option: Option) -> None:
    if ini_place(setting) in (("server", "llm_model"), ("server", "vision_model")):
        return  # the same as --model and --vision-model
    default = COMMON_DEFAULTS.get(setting.name, setting.default)
    text = option.help.replace("OTPU_API_KEY", _API_KEY)
    if default is not None and default is not False:
        shown = f"{default:g}" if isinstance(default, float) else ",".join(default) if option.repeated else default
        text += f" (default: {shown})"
    text = text.replace("%", "%%")
    if setting.default is False:
        group.add_argument(flag_of(setting), dest=setting.name, action="store_true", help=text)
        return
    metavar = "|".join(option.choices) or option.metavar
    action = "append" if option.repeated else "store"
    group.add_argument(flag_of(setting), dest=setting.name, action=action, metavar=metavar, help=text)

"""otpu-serve's command line, made from the fields of ServeSettings."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NoReturn, get_type_hints

from npuserve import __version__
from npuserve.cli.option_values import converted, separated
from npuserve.config import Option, ServeSettings, check, flag_of, option_of
from npuserve.errors import ConfigError

_DESCRIPTION = "Serve one language model over an OpenAI-compatible HTTP API, on the openTPU card or its simulator."
_EXAMPLES = """\
examples:
  otpu-serve --model smollm2                 SmolLM2-135M on the simulator, http://127.0.0.1:8000/v1
  otpu-serve --model ./my-checkpoint --port 8001 --cap 4096
"""


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit, so that every mistake is told the same way."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see otpu-serve --help")


def parse_arguments(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> ServeSettings:
    """Settings from flags, then environment, then defaults. Raises ConfigError; exits for --help and --version."""
    texts: dict[str, Any] = vars(_parser().parse_args(arguments))
    for setting in fields(ServeSettings):
        variable = option_of(setting).environment
        if variable and setting.name not in texts and environment.get(variable):
            texts[setting.name] = environment[variable]
        if option_of(setting).repeated and setting.name in texts:
            texts[setting.name] = separated(texts[setting.name])
    kinds = get_type_hints(ServeSettings)
    values = {name: converted(f"--{name.replace('_', '-')}", text, kinds[name]) for name, text in texts.items()}
    settings = ServeSettings(**values)
    check(settings, values.keys())
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="otpu-serve",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"otpu-serve (npuserve) {__version__}")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in fields(ServeSettings):
        title = option_of(setting).group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add(groups[title], setting)
    return parser


def _add(group: argparse._ArgumentGroup, setting: "Field[Any]") -> None:
    option = option_of(setting)
    text = _help(setting, option).replace("%", "%%")
    if setting.default is False:
        group.add_argument(flag_of(setting), dest=setting.name, action="store_true", help=text)
    else:
        metavar = "|".join(option.choices) or option.metavar
        action = "append" if option.repeated else "store"
        group.add_argument(flag_of(setting), dest=setting.name, action=action, metavar=metavar, help=text)


def _help(setting: "Field[Any]", option: Option) -> str:
    text = option.help
    if setting.default is not None and setting.default is not False:
        shown = f"{setting.default:g}" if isinstance(setting.default, float) else setting.default
        text += f" (default: {shown})"
    if option.unbuilt and not option.works_with:
        text += " [not available yet]"
    elif option.unbuilt:
        working = [f"{value:g}" if isinstance(value, float) else str(value) for value in option.works_with]
        text += f" [only {' and '.join(working)} yet]"
    return text

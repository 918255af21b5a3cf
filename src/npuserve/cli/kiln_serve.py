"""kiln-serve: the composition root on a Rockchip board. Heavy imports wait until the settings are sound."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npuserve.cli.exit_status import exit_status
from npuserve.cli.kiln_arguments import parse_arguments
from npuserve.cli.kiln_settings import KilnSettings

if TYPE_CHECKING:
    from npuserve.cli.kiln_parts import KilnParts

_COMMAND = "kiln-serve"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stopped, or examine the board. 0, 1 for what failed, 2 for a wrong option, 130 for an interrupt."""
    return exit_status(_COMMAND, lambda: _main(sys.argv[1:] if arguments is None else list(arguments)))


def _main(given: list[str]) -> int | None:
    if given[:1] == ["doctor"]:
        from npuserve.cli.kiln_doctor import report

        return report(parse_arguments(given[1:], os.environ))
    _serve(parse_arguments(given, os.environ))
    return None


def _serve(settings: KilnSettings) -> None:
    from npuserve.cli.serving import key_ring, serve, start_logging, tls_files, warn_if_open
    from npuserve.server.event_router import EventRouter
    from npuserve.server.listening import listen

    common = settings.common
    keys, tls = key_ring(common), tls_files(common)
    start_logging(common)
    warn_if_open(_COMMAND, common, keys)
    with listen(common.host, common.port) as listener:
        from npuserve.cli.kiln_parts import load_parts, server_state

        router = EventRouter()
        parts = load_parts(settings, router)
        try:
            state = server_state(settings, parts, router, keys)
            key = "<your key>" if keys else "not-needed"
            serve(common, state, listener, tls, lambda url: print(_banner(url, parts, key), flush=True))
        finally:
            parts.close()


def _banner(url: str, parts: "KilnParts", key: str) -> str:
    lines: list[str] = []
    if parts.language is not None:
        model = parts.language.model
        lines += [f"kiln-serve: {model.name} ({parts.language.path}), {model.context_length} tokens of context"]
        lines += [f"  {note}" for note in parts.language.notes]
    else:
        lines += ["kiln-serve: no language model; chat answers 503"]
    if parts.vision is not None:
        task = "classify" if parts.vision.classifier else "detect"
        lines += [f"kiln-serve: {parts.vision.name}, /v1/vision/{task}"]
    lines += [f"listening on {url}/v1", ""]
    shown = url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")
    lines += [f'  from openai import OpenAI; client = OpenAI(base_url="{shown}/v1", api_key="{key}")', ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""kiln-serve: the composition root on a Rockchip board. Heavy imports wait until the settings are sound."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npuserve.cli.kiln_arguments import parse_arguments
from npuserve.cli.kiln_models import discover
from npuserve.cli.kiln_settings import KilnSettings
from npuserve.errors import CheckpointError, ConfigError, NpuserveError

if TYPE_CHECKING:
    from npuserve.cli.kiln_language import Language
    from npuserve.server.event_router import EventRouter

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stopped. The exit status: 0, 1 for what failed, 2 for a wrong option, 130 for an early interrupt."""
    try:
        _serve(parse_arguments(arguments, os.environ))
    except ConfigError as error:
        _tell(f"error: {error}")
        return 2
    except NpuserveError as error:
        _tell(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _tell("interrupted")
        return _INTERRUPTED
    return 0


def _serve(settings: KilnSettings) -> None:
    from npuserve.cli.serving import http_settings, is_open_to_all, key_ring, serve, tls_files
    from npuserve.server.event_router import EventRouter
    from npuserve.server.listening import listen
    from npuserve.server.state import ServerState

    common = settings.common
    keys, tls = key_ring(common), tls_files(common)
    if is_open_to_all(common, keys):
        _tell(f"warning: listening on {common.host} without an API key; anyone who reaches the port can use it")
    with listen(common.host, common.port) as listener:
        router = EventRouter()
        language = _language(settings, router)
        state = ServerState(language.model, language.engine, router, keys, http_settings(common), backend="rkllm")
        try:
            serve(common, state, listener, tls, lambda url: print(_banner(url, language), flush=True))
        finally:
            if language.engine.stop():
                language.close()


def _language(settings: KilnSettings, router: "EventRouter") -> "Language":
    path = discover(settings.llm_path, ".rkllm")
    if path is None:
        raise CheckpointError(f"no model was found; set [llm] model in {settings.config_path} or give --model")
    from npuserve.cli.kiln_language import load_language

    return load_language(settings, path, router)


def _banner(url: str, language: "Language") -> str:
    shown = url.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
    lines = [f"kiln-serve: {language.model.name} ({language.path}), {language.model.context_length} tokens of context"]
    lines += [f"  {note}" for note in language.notes]
    lines += [f"listening on {url}/v1", ""]
    lines += [f'  from openai import OpenAI; client = OpenAI(base_url="{shown}/v1", api_key="not-needed")', ""]
    return "\n".join(lines)


def _tell(text: str) -> None:
    print(f"kiln-serve: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

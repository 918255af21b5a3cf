"""kiln-serve: the composition root on a Rockchip board. Heavy imports wait until the settings are sound."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuserve.cli.kiln_arguments import parse_arguments
from npuserve.cli.kiln_models import discover, served_names
from npuserve.cli.kiln_settings import KilnSettings
from npuserve.errors import CheckpointError, ConfigError, NpuserveError

if TYPE_CHECKING:
    from npuserve.cli.kiln_language import Language
    from npuserve.engine.base import AnyEngine
    from npuserve.server.event_router import EventRouter
    from npuserve.server.keys import KeyRing
    from npuserve.server.state import ServerState
    from npuserve.server.vision_service import VisionService

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
    from npuserve.cli.serving import is_open_to_all, key_ring, serve, tls_files
    from npuserve.server.event_router import EventRouter
    from npuserve.server.listening import listen

    common = settings.common
    keys, tls = key_ring(common), tls_files(common)
    if is_open_to_all(common, keys):
        _tell(f"warning: listening on {common.host} without an API key; anyone who reaches the port can use it")
    with listen(common.host, common.port) as listener:
        router = EventRouter()
        parts = _load(settings, router)
        try:
            state = _state(settings, parts, router, keys)
            serve(common, state, listener, tls, lambda url: print(_banner(url, parts), flush=True))
        finally:
            parts.close()


@dataclass(slots=True)
class _Parts:
    """What was loaded: one of the two at least."""

    language: "Language | None" = None
    vision: "VisionService | None" = None

    def close(self) -> None:
        if self.vision is not None:
            self.vision.close()
        if self.language is not None and self.language.engine.stop():
            self.language.close()


def _load(settings: KilnSettings, router: "EventRouter") -> _Parts:
    """Both models as far as they are there. A model that does not load is told of; without any, that is the end."""
    parts, faults = _Parts(), []
    try:
        parts.language = _language(settings, router)
    except ConfigError:
        raise
    except NpuserveError as error:
        faults.append(str(error))
    try:
        parts.vision = _vision(settings)
    except ConfigError:
        parts.close()
        raise
    except NpuserveError as error:
        faults.append(str(error))
    if parts.language is None and parts.vision is None:
        reason = "; ".join(faults) or "no .rkllm and no .rknn was found"
        raise CheckpointError(
            f"no model is loaded: {reason}; set [llm] model or [vision] model in {settings.config_path}"
        )
    for fault in faults:
        _tell(f"warning: {fault}; going on without it")
    return parts


def _language(settings: KilnSettings, router: "EventRouter") -> "Language | None":
    asked = settings.llm_path
    if asked is not None and not asked.exists() and asked.suffix.lower() != ".rkllm":
        raise CheckpointError(f"{asked}: no such file or folder")
    path = discover(asked, ".rkllm")
    if path is None:
        return None
    from npuserve.cli.kiln_language import load_language

    if path != asked:
        _tell(f"{asked or 'no [llm] model'} was not found; loading {path}")
    return load_language(settings, path, router)


def _vision(settings: KilnSettings) -> "VisionService | None":
    asked = settings.vision_path
    path = discover(asked, ".rknn")
    if path is None:
        if asked is not None:
            raise CheckpointError(f"{asked}: no such file, and no other .rknn beside it")
        return None
    from npuserve.cli.kiln_vision import load_vision_service

    if path != asked:
        _tell(f"{asked or 'no [vision] model'} was not found; loading {path}")
    return load_vision_service(settings, path)


def _state(settings: KilnSettings, parts: _Parts, router: "EventRouter", keys: "KeyRing") -> "ServerState":
    from npuserve.cli.serving import http_settings
    from npuserve.engine.idle_engine import IdleEngine
    from npuserve.server.app import ROUTES
    from npuserve.server.kiln_routes import model_routes, no_model, routes_without_model
    from npuserve.server.state import ServerState
    from npuserve.server.vision_routes import vision_routes

    language = parts.language
    engine: AnyEngine
    if language is None:
        routes = {**routes_without_model(ROUTES), **model_routes(lambda: ())}
        model, engine, backend = no_model(), IdleEngine(), "none"
    else:
        path, name = language.path, language.model.name
        routes = {**model_routes(lambda: served_names(path, name)), **language.routes}
        model, engine, backend = language.model, language.engine, language.backend
    return ServerState(
        model,
        engine,
        router,
        keys,
        http_settings(settings.common),
        backend=backend,
        routes={**routes, **vision_routes(parts.vision)},
    )


def _banner(url: str, parts: _Parts) -> str:
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
    lines += [f'  from openai import OpenAI; client = OpenAI(base_url="{shown}/v1", api_key="not-needed")', ""]
    return "\n".join(lines)


def _tell(text: str) -> None:
    print(f"kiln-serve: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""What kiln-serve consists of: a language model, a vision model or both, and the server's state over them."""

import sys
from dataclasses import dataclass

from npuserve.cli.kiln_language import Language, load_language
from npuserve.cli.kiln_models import discover, served_names
from npuserve.cli.kiln_settings import KilnSettings
from npuserve.cli.kiln_vision import load_vision_service
from npuserve.cli.serving import http_settings
from npuserve.drivers.heap import trim_heap
from npuserve.engine.base import AnyEngine
from npuserve.engine.idle_engine import IdleEngine
from npuserve.errors import CheckpointError, ConfigError, NpuserveError
from npuserve.server.app import ROUTES
from npuserve.server.event_router import EventRouter
from npuserve.server.keys import KeyRing
from npuserve.server.kiln_routes import model_routes, no_model, routes_without_model
from npuserve.server.state import ServerState
from npuserve.server.vision_routes import vision_routes
from npuserve.server.vision_service import VisionService


@dataclass(slots=True)
class KilnParts:
    """What was loaded: one of the two at least."""

    language: Language | None = None
    vision: VisionService | None = None

    def close(self) -> None:
        if self.vision is not None:
            self.vision.close()
        if self.language is not None and self.language.engine.stop():
            self.language.close()


def load_parts(settings: KilnSettings, router: EventRouter) -> KilnParts:
    """Both models as far as they are there. A model that does not load is told of; without any, that is the end."""
    parts, faults = KilnParts(), []
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
    trim_heap()
    return parts


def _language(settings: KilnSettings, router: EventRouter) -> Language | None:
    asked = settings.llm_path
    if asked is not None and not asked.exists() and asked.suffix.lower() != ".rkllm":
        raise CheckpointError(f"{asked}: no such file or folder")
    path = discover(asked, ".rkllm")
    if path is None:
        if asked is not None:
            raise CheckpointError(f"{asked}: no such file, and no other .rkllm beside it")
        return None
    if path != asked:
        _tell(f"loading {path}" + (f", for {asked} is not there" if asked else ""))
    return load_language(settings, path, router)


def _vision(settings: KilnSettings) -> VisionService | None:
    asked = settings.vision_path
    path = discover(asked, ".rknn")
    if path is None:
        if asked is not None:
            raise CheckpointError(f"{asked}: no such file, and no other .rknn beside it")
        return None

    if path != asked:
        _tell(f"loading {path}" + (f", for {asked} is not there" if asked else ""))
    return load_vision_service(settings, path)


def server_state(settings: KilnSettings, parts: KilnParts, router: EventRouter, keys: KeyRing) -> ServerState:

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


def _tell(text: str) -> None:
    print(f"kiln-serve: {text}", file=sys.stderr, flush=True)

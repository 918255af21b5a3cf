"""otpu-serve: the composition root of the openTPU server. Heavy imports wait until the settings are sound."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npuserve.cli.exit_status import exit_status
from npuserve.cli.serve_arguments import parse_arguments
from npuserve.config import ServeSettings

if TYPE_CHECKING:
    from npuserve.checkpoints.checkpoint import Checkpoint
    from npuserve.devices.base import Device
    from npuserve.server.state import ServerState

_COMMAND = "otpu-serve"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stopped. The exit status: 0, 1 for what failed, 2 for a wrong option, 130 for an early interrupt."""
    return exit_status(_COMMAND, lambda: _serve(parse_arguments(arguments, os.environ)))


def _serve(settings: ServeSettings) -> None:
    from npuserve.cli.serving import http_settings, key_ring, serve, start_logging, tls_files, warn_if_open
    from npuserve.server.listening import listen

    keys, tls = key_ring(settings), tls_files(settings)
    start_logging(settings)
    warn_if_open(_COMMAND, settings, keys)
    with listen(settings.host, settings.port) as listener:
        from npuserve.checkpoints.checkpoint import open_checkpoint
        from npuserve.checkpoints.locate import ensure_checkpoint
        from npuserve.checkpoints.progress import Progress
        from npuserve.cli.checkpoint_serving import load_checkpoint
        from npuserve.server.event_router import EventRouter
        from npuserve.server.state import ServerState

        path = ensure_checkpoint(settings.model, progress=Progress())
        checkpoint = open_checkpoint(path)
        name = settings.served_model_name or (path.resolve().name if path.is_dir() else checkpoint.name)
        router = EventRouter()
        served = load_checkpoint(settings, checkpoint, name, router, _open_device)
        try:
            state = ServerState(
                served.model, served.engine, router, keys, http_settings(settings), backend=settings.backend
            )
            serve(settings, state, listener, tls, lambda url: print(_banner(url, settings, state), flush=True))
        finally:
            served.close()


def _open_device(settings: ServeSettings, checkpoint: "Checkpoint") -> "Device":
    from npuserve.cli.checkpoint_serving import open_isa

    return open_isa(_COMMAND, settings, checkpoint)


def _banner(url: str, settings: ServeSettings, state: "ServerState") -> str:
    model, num_slots = state.model, state.engine.stats().num_slots
    slots = "1 slot" if num_slots == 1 else f"{num_slots} slots"
    shown = url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]")
    key = ' -H "Authorization: Bearer $OTPU_API_KEY"' if state.keys else ""
    return (
        f"otpu-serve: {model.name} on {settings.backend}, {slots} of {model.context_length} tokens\n"
        f"listening on {url}/v1\n\n"
        f"  curl {shown}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n"
        """       -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "stream": true}'"""
        "\n"
    )


if __name__ == "__main__":
    sys.exit(main())

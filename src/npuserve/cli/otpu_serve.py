"""otpu-serve: the composition root of the openTPU server. Heavy imports wait until the settings are sound."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from npuserve.cli.serve_arguments import parse_arguments
from npuserve.config import ServeSettings
from npuserve.errors import ConfigError, NpuserveError

if TYPE_CHECKING:
    import socket
    from concurrent.futures import Future

    from npuserve.checkpoints.checkpoint import Checkpoint
    from npuserve.devices.base import Device
    from npuserve.kvstore.store import ContextStore
    from npuserve.server.keys import KeyRing
    from npuserve.server.state import ServerState
    from npuserve.server.tls import TlsFiles

_INTERRUPTED = 130
_GB = 1 << 30


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


def _serve(settings: ServeSettings) -> None:
    from npuserve.server.listening import is_loopback, listen

    keys, tls = _keys(settings), _tls(settings)
    if not is_loopback(settings.host) and not keys:
        _tell(f"warning: listening on {settings.host} without an API key; anyone who reaches the port can use it")
    with listen(settings.host, settings.port) as listener:
        from npuserve.checkpoints.checkpoint import open_checkpoint
        from npuserve.checkpoints.locate import ensure_checkpoint
        from npuserve.checkpoints.progress import Progress

        path = ensure_checkpoint(settings.model, progress=Progress())
        checkpoint = open_checkpoint(path)
        name = settings.served_model_name or (path.resolve().name if path.is_dir() else checkpoint.name)
        state, device, store = _load(settings, checkpoint, name, keys)
        try:
            _run(settings, state, listener, tls)
        finally:
            stopped = state.engine.stop()
            if store is not None:
                store.close()
            if stopped:
                device.close()


def _keys(settings: ServeSettings) -> "KeyRing":
    """The keys of the flags (or the environment) and of the file."""
    from npuserve.server.keys import KeyRing, check_keys, read_key_file

    keys = list(settings.api_key or ())
    if settings.api_key_file is not None:
        keys += read_key_file(Path(settings.api_key_file).expanduser())
    check_keys(keys)
    return KeyRing(keys, share_cache=settings.share_cache)


def _tls(settings: ServeSettings) -> "TlsFiles | None":
    from npuserve.server.tls import TlsFiles

    if settings.tls_cert is None or settings.tls_key is None:
        return None
    tls = TlsFiles(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())
    tls.check()
    return tls


def _load(
    settings: ServeSettings, checkpoint: "Checkpoint", name: str, keys: "KeyRing"
) -> "tuple[ServerState, Device, ContextStore | None]":
    """Device and tokenizer side by side: both take a noticeable part of a second."""
    opening = _in_background(lambda: _open_device(settings, checkpoint))
    from npuserve.checkpoints.catalog import catalog
    from npuserve.engine.engine import Engine
    from npuserve.engine.settings import EngineSettings
    from npuserve.server.event_router import EventRouter
    from npuserve.server.served_model import served_model
    from npuserve.server.state import HttpSettings, ServerState

    tokenizer = checkpoint.tokenizer()
    device = opening.result()
    entry = catalog().get(settings.model)
    model = served_model(
        checkpoint,
        tokenizer,
        device.capabilities,
        name=name,
        think=settings.think,
        splits_reasoning=settings.reasoning_parser is not None,
        chat_template=entry.chat_template if entry else None,
    )
    router = EventRouter()
    schedule = EngineSettings(
        num_slots=settings.slots,
        chunk_size=settings.chunked_prefill_size,
        mixed=settings.mixed,
        max_queue=settings.max_queue,
        max_running=settings.max_running,
        quantum=settings.quantum,
    )
    http = HttpSettings(
        cors_origins=frozenset(settings.cors_origin or ()),
        request_timeout_s=settings.request_timeout,
        grace_s=settings.grace,
        vllm_metrics=settings.metrics_names == "vllm",
    )
    store = _open_store(settings, checkpoint, device)
    engine = Engine(device, schedule, router.deliver, store=store)
    return ServerState(model, engine, router, keys, http, backend=settings.backend), device, store


def _open_store(settings: ServeSettings, checkpoint: "Checkpoint", device: "Device") -> "ContextStore | None":
    from npuserve.kvstore.settings import KvSettings
    from npuserve.kvstore.store import open_context_store
    from npuserve.program.image import image_key

    can = device.capabilities
    room = KvSettings(int(settings.kv_ram_gb * _GB), int(settings.kv_disk_gb * _GB), Path(settings.kv_dir))
    return open_context_store(room, image_key(checkpoint), can.page_format, can.page_bytes)


def _in_background(work: "Callable[[], Device]") -> "Future[Device]":
    """`work` in a thread that does not outlive an interrupt, as an executor's would."""
    from concurrent.futures import Future

    future: Future[Device] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="open-device", daemon=True).start()
    return future


def _open_device(settings: ServeSettings, checkpoint: "Checkpoint") -> "Device":
    from npuserve.cli.build_progress import BuildProgress
    from npuserve.devices.isa import IsaSettings, open_isa_device

    wanted = IsaSettings(num_slots=settings.slots, context_length=settings.cap, num_threads=settings.threads)
    return open_isa_device(checkpoint, wanted, BuildProgress)


def _run(settings: ServeSettings, state: "ServerState", listener: "socket.socket", tls: "TlsFiles | None") -> None:
    import logging

    from npuserve.server.listening import loopback_names
    from npuserve.server.running import run

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    host, port = listener.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    run(
        state,
        listener,
        hosts=loopback_names(settings.host, settings.allow_host or ()),
        tls=tls,
        access_log=settings.log_level in ("debug", "info"),
        on_listening=lambda: print(_banner(url, settings, state), flush=True),
    )


def _banner(url: str, settings: ServeSettings, state: "ServerState") -> str:
    model, num_slots = state.model, state.engine.stats().num_slots
    return (
        f"otpu-serve: {model.name} on {settings.backend}, {num_slots} slots of {model.context_length} tokens\n"
        f"listening on {url}/v1\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        """       -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'\n"""
    )


def _tell(text: str) -> None:
    print(f"otpu-serve: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""What both serve commands do round a loaded model: keys, TLS, the listening address, logging, the run."""

import logging
import socket
from collections.abc import Callable

from npuserve.cli.exit_status import drop_output, tell
from npuserve.cli.notify import notify
from npuserve.config import ServeSettings
from npuserve.home import expanded
from npuserve.server.keys import KeyRing, check_keys, read_key_file
from npuserve.server.listening import is_loopback, loopback_names
from npuserve.server.state import HttpSettings, ServerState
from npuserve.server.tls import TlsFiles


def start_logging(settings: ServeSettings) -> None:
    """Messages of `log_level` and above go to standard error, those of loading included."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def key_ring(settings: ServeSettings) -> KeyRing:
    """The keys of the flags (or the environment) and of the file. Raises ConfigError."""
    keys = list(settings.api_key or ())
    if settings.api_key_file is not None:
        keys += read_key_file(expanded(settings.api_key_file))
    check_keys(keys)
    return KeyRing(keys, share_cache=settings.share_cache)


def tls_files(settings: ServeSettings) -> TlsFiles | None:
    """Certificate and key, None for plain HTTP. Raises ConfigError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    tls = TlsFiles(expanded(settings.tls_cert), expanded(settings.tls_key))
    tls.check()
    return tls


def http_settings(settings: ServeSettings) -> HttpSettings:
    return HttpSettings(
        cors_origins=frozenset(origin.lower() for origin in settings.cors_origin or ()),
        request_timeout_s=settings.request_timeout,
        grace_s=settings.grace,
        vllm_metrics=settings.metrics_names == "vllm",
    )


def warn_if_open(command: str, settings: ServeSettings, keys: KeyRing) -> None:
    """Say so when anyone who reaches the port can use the server."""
    if not is_loopback(settings.host) and not keys:
        tell(
            command,
            f"warning: listening on {settings.host} without an API key; anyone who reaches the port can use it",
        )


def serve(
    settings: ServeSettings,
    state: ServerState,
    listener: socket.socket,
    tls: TlsFiles | None,
    on_listening: Callable[[str], None],
) -> None:
    """Serve until stopped; `on_listening` gets the server's URL once it listens."""
    from npuserve.server.running import run  # the application: heavy, and not needed to see that a port is taken

    host, port = listener.getsockname()[:2]
    url = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
    run(
        state,
        listener,
        hosts=loopback_names(settings.host, settings.allow_host or ()),
        tls=tls,
        access_log=settings.log_level in ("debug", "info"),
        on_listening=lambda: _listening(url, on_listening),
    )


def _listening(url: str, on_listening: Callable[[str], None]) -> None:
    try:
        on_listening(url)
    except OSError:  # nobody reads the banner, or there is no room for it
        drop_output()
    notify(f"READY=1\nSTATUS=listening on {url}")

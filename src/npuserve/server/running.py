"""Running the application until it is told to stop, and stopping in order."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from npuserve.errors import DeviceUnavailableError
from npuserve.server.access_log import hide_queries
from npuserve.server.app import create_app
from npuserve.server.connection import ACCEPTED_AT_ONCE, Connection
from npuserve.server.state import ServerState
from npuserve.server.tls import TlsFiles

_FLUSH_S = 2
_BACKLOG = 2048
_MOST_FILES = 65536
# A connection between two requests, or whose request has its reply and is still not complete.
IDLE_TIMEOUT_S = 60
_WATCH_S = 0.5
# The event loop gives the interpreter away with every write to a socket and waits this long, at most, for the engine's
# thread to give it back: with Python's own 5 ms, streams come in bursts.
_SWITCH_INTERVAL_S = 0.00005


def uvicorn_config(app: ASGIApp, *, tls: TlsFiles | None = None, access_log: bool = False) -> uvicorn.Config:
    """How uvicorn serves `app`: no websockets, no trust in forwarding headers, bounded requests."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=IDLE_TIMEOUT_S,
        timeout_graceful_shutdown=_FLUSH_S,
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )


def run(
    state: ServerState,
    listener: socket.socket,
    *,
    hosts: frozenset[str] | None = None,
    tls: TlsFiles | None = None,
    access_log: bool = False,
    on_listening: Callable[[], None] = lambda: None,
) -> None:
    """Serve `state` on `listener` from the main thread until SIGINT, SIGTERM or SIGHUP; a second one exits at once.

    Raises DeviceUnavailableError when the device was given up: /health tells it for the settings' grace, then it ends,
    so that whoever started the server can start it again.
    """
    config = uvicorn_config(create_app(state, hosts=hosts), tls=tls, access_log=access_log)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _raise_file_limit()
    hide_queries()
    _Server(config, state, on_listening).run(sockets=[listener])
    if state.engine.failed:
        raise DeviceUnavailableError("the device was given up; see the log, and start the server again")


def _raise_file_limit() -> None:
    """Every connection is an open file, and the usual limit of 1024 is there for programs that wait with select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """Stops in two steps: while replies run out, /health and new requests are told so; then uvicorn shuts down."""

    def __init__(self, config: uvicorn.Config, state: ServerState, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._state = state
        self._on_listening = on_listening
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        self._loop = asyncio.get_running_loop()
        # A terminal that is closed; `nohup` has it ignored, and so it stays.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self.handle_exit)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # the system's queue may be longer than what is accepted at once
        if self.started:
            self._watching = asyncio.ensure_future(self._watch_engine())
            self._on_listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain; second: exit. Unlike uvicorn's own, it is not raised again after a clean stop."""
        if self._state.stopping:
            os._exit(1)
        self._state.stopping = True
        if self._loop is None or not self.started:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._start_draining)

    async def _watch_engine(self) -> None:
        while not self._state.engine.failed:
            await asyncio.sleep(_WATCH_S)
        await asyncio.sleep(self._state.settings.grace_s)
        self.should_exit = True

    def _start_draining(self) -> None:
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        try:
            await asyncio.to_thread(self._state.engine.stop, self._state.settings.grace_s)
        finally:
            self.should_exit = True

"""The listening socket, opened before a model is loaded so that a taken port shows at once."""

import ipaddress
import os
import socket
from collections.abc import Iterable

from npuserve.errors import AddressError

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; connections are refused until the server listens on it. Raises AddressError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise AddressError(f"--host {host} is no address of this machine; use 127.0.0.1 or 0.0.0.0") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise AddressError(f"cannot listen on {host} port {port}: {reason}; choose another --port or --host") from error
    return bound


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def loopback_names(host: str, further: Iterable[str] = ()) -> frozenset[str] | None:
    """Host names that requests to a loopback server may carry; None when it is bound elsewhere."""
    if not is_loopback(host):
        return None
    return _LOOPBACK_NAMES | {host.lower(), *(name.lower() for name in further)}

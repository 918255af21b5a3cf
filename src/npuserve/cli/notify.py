"""Telling systemd how the service is (sd_notify's protocol: a datagram to the socket that the unit names)."""

import os
import socket


def notify(state: str) -> bool:
    """Send `state`, such as READY=1; False where nobody listens or it could not be sent."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(target)
            channel.sendall(state.encode())
    except OSError:
        return False
    return True

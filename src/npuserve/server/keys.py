"""The API keys that clients may show, and what belongs to each."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import Request
from starlette.types import Scope

from npuserve.errors import ConfigError

_MAX_FILE_BYTES = 1 << 20
_SCOPE_NAME = "npuserve.owner"


class KeyRing:
    """The keys of one server; with none, every client may come in.

    Only digests under a secret of this process are kept and compared, all of them every time, so the time of a
    refusal says nothing of a key. `owner` names what belongs to a key (contexts, request ids): the same name on every
    start, from which the key cannot be had, and one name for all with `share_cache`.
    """

    def __init__(self, keys: Iterable[str] = (), *, share_cache: bool = False) -> None:
        self._secret = secrets.token_bytes(32)
        self._owner_of: dict[bytes, str] = {}
        for key in keys:
            name = hashlib.blake2b(key.encode(), digest_size=16, person=b"npuserve-owner").hexdigest()
            self._owner_of[self._digest(key.encode())] = "" if share_cache else name

    def __bool__(self) -> bool:
        return bool(self._owner_of)

    def owner(self, shown: Iterable[bytes]) -> str | None:
        """Whose request it is that shows these keys; None when none of them is right."""
        found: str | None = None
        for key in shown:
            digest = self._digest(key)
            for known, name in self._owner_of.items():
                if hmac.compare_digest(known, digest):
                    found = name
        return found

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


def read_key_file(path: Path) -> list[str]:
    """The keys of a file, one a line. Raises ConfigError; no message holds a part of the file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        lines = [line.strip() for line in data.decode().splitlines()]
    except OSError as error:
        raise ConfigError(f"--api-key-file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"--api-key-file {path} is not UTF-8 text; write one key a line") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"--api-key-file {path} has more than {_MAX_FILE_BYTES} bytes; write one key a line")
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {path} holds no key; write one a line, or leave the option out")
    return keys


def check_keys(keys: Iterable[str]) -> None:
    """Raise ConfigError for a key that no header can carry."""
    for number, key in enumerate(keys, 1):
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(f"API key {number} has a space or a character outside ASCII, which no header can carry")


def shown_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys in a request's headers: `Authorization: Bearer` and `x-api-key`."""
    keys = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.strip())
        elif name == b"x-api-key":
            keys.append(value.strip())
    return keys[:4]  # a client has one; thousands would be work


def set_owner(scope: Scope, owner: str) -> None:
    """Note whose request this is."""
    scope[_SCOPE_NAME] = owner


def owner_of(request: Request) -> str:
    """Whose request this is: empty where no keys are asked for or contexts are shared."""
    owner: str = request.scope.get(_SCOPE_NAME, "")
    return owner


def cache_salt_of(request: Request, given: str) -> str:
    """The salt of a request's contexts: its owner and what the request itself gave."""
    owner = owner_of(request)
    return f"{owner}:{given}" if owner else given

"""Certificate and key, looked at before a model is loaded."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from npuserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a certificate chain and its private key."""

    cert: Path
    key: Path

    def check(self) -> None:
        """Raise ConfigError unless both can be read, belong together and need no password."""

        def no_password() -> str:
            raise ConfigError(f"--tls-key {self.key} is encrypted; give one that needs no password")

        for flag, path in (("--tls-cert", self.cert), ("--tls-key", self.key)):
            try:
                path.open("rb").close()
            except OSError as error:
                raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}") from error
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.cert, self.key, no_password)
        except (ssl.SSLError, ValueError) as error:
            message = f"--tls-cert {self.cert} and --tls-key {self.key} are not a certificate and its key in PEM form"
            raise ConfigError(message) from error

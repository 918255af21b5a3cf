"""Keys, origins and TLS over a socket."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from live_server import Script, Served, null_state, serving
from npuserve.errors import ConfigError
from npuserve.server.app import ROUTES
from npuserve.server.keys import KeyRing
from npuserve.server.state import HttpSettings
from npuserve.server.tls import TlsFiles

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    http = HttpSettings(cors_origins=frozenset({PAGE}))
    with serving(null_state(Script({"": "ok"}), keys=KeyRing(["alpha", "beta"]), http=http)) as served:
        yield served


def closed_paths() -> list[tuple[str, str]]:
    return [
        (method, path.replace("{name:path}", "tiny"))
        for path, handlers in ROUTES.items()
        for method in (*handlers, "HEAD", "OPTIONS", "DELETE")
        if path != "/health"
    ]


@pytest.mark.parametrize(("method", "path"), [*closed_paths(), ("GET", "/nothing"), ("GET", "/"), ("GET", "//health")])
def test_every_route_but_health_asks_for_a_key(locked: Served, method: str, path: str) -> None:
    reply = httpx.request(method, locked.url + path)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert "error" in reply.json()


@pytest.mark.parametrize("path", ["/health", "/health/"])
def test_health_is_open(locked: Served, path: str) -> None:
    assert httpx.get(locked.url + path).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer alpha"}, 200),
        ({"Authorization": "bearer beta"}, 200),
        ({"x-api-key": "beta"}, 200),
        ({"Authorization": "Bearer wrong", "x-api-key": "beta"}, 200),
        ({"Authorization": "Bearer gamma"}, 401),
        ({"Authorization": "alpha"}, 401),
        ({"Authorization": "Basic alpha"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"x-api-key": "alphabeta"}, 401),
        ({"x-api-key": b"\xff\xfe"}, 401),
        ({"Cookie": "x-api-key=alpha"}, 401),
    ],
)
def test_key_is_taken_as_bearer_or_x_api_key(locked: Served, headers: dict[str, str], status: int) -> None:
    assert httpx.get(f"{locked.url}/v1/models", headers=headers).status_code == status


def test_refusal_does_not_repeat_the_key(locked: Served) -> None:
    reply = httpx.get(f"{locked.url}/v1/models", headers={"x-api-key": "hunter2"})
    assert "hunter2" not in reply.text
    assert reply.json()["error"]["code"] == "invalid_api_key"


def cached_tokens(served: Served, key: str, **more: object) -> int:
    body = {**HELLO, "messages": [{"role": "user", "content": "the quick brown fox " * 10}], **more}
    reply = httpx.post(served.url + CHAT, json=body, headers={"x-api-key": key}).json()
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_clients_with_different_keys_share_no_context() -> None:
    with serving(null_state(Script({"": "ok"}), keys=KeyRing(["alpha", "beta"]))) as served:
        assert cached_tokens(served, "alpha") == 0
        assert cached_tokens(served, "beta") == 0
        assert cached_tokens(served, "alpha") > 0
        assert cached_tokens(served, "alpha", cache_salt="mine") == 0
    with serving(null_state(Script({"": "ok"}), keys=KeyRing(["alpha", "beta"], share_cache=True))) as served:
        assert cached_tokens(served, "alpha") == 0
        assert cached_tokens(served, "beta") > 0


def test_page_of_a_given_origin_may_ask_and_read(locked: Served) -> None:
    asking = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    preflight = httpx.options(locked.url + CHAT, headers=asking)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    reply = httpx.post(locked.url + CHAT, json=HELLO, headers={"Origin": PAGE, "x-api-key": "alpha"})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, PAGE)
    refused = httpx.post(locked.url + CHAT, json=HELLO, headers={"Origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://chat.example", PAGE + ".evil.example"])
def test_page_of_another_origin_may_not(locked: Served, origin: str) -> None:
    headers = {"Origin": origin, "x-api-key": "alpha"}
    reply = httpx.post(locked.url + CHAT, json=HELLO, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in httpx.get(f"{locked.url}/v1/models", headers=headers).headers


def test_any_origin_may_where_that_was_asked_for_and_none_by_default() -> None:
    with serving(null_state(Script({"": "ok"}), http=HttpSettings(cors_origins=frozenset({"*"})))) as served:
        reply = httpx.post(served.url + CHAT, json=HELLO, headers={"Origin": "null"})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "*")
    with serving(null_state(Script({"": "ok"}))) as served:
        assert httpx.post(served.url + CHAT, json=HELLO, headers={"Origin": PAGE}).status_code == 403
        assert httpx.post(served.url + CHAT, json=HELLO, headers={"Origin": served.url}).status_code == 200
        preflight = httpx.options(served.url + CHAT, headers={"Origin": PAGE, "Access-Control-Request-Method": "POST"})
        assert "access-control-allow-origin" not in preflight.headers


def make_certificate(folder: Path, name: str = "server", password: bytes | None = None) -> TlsFiles:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(folder / f"{name}.pem", folder / f"{name}.key")
    files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    files.key.write_bytes(pem)
    return files


def test_tls_serves_whole_and_streamed_replies(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    files.check()
    trusting = ssl.create_default_context(cafile=str(files.cert))
    with serving(null_state(Script({"": "ok"})), tls=files) as served:
        url = f"https://127.0.0.1:{served.port}"
        with httpx.Client(base_url=url, verify=trusting) as http:
            assert http.get("/health").status_code == 200
            assert http.post(CHAT, json={**HELLO, "stream": True}).text.endswith("data: [DONE]\n\n")


def test_unusable_certificate_or_key_is_told(tmp_path: Path) -> None:
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    locked = make_certificate(tmp_path, "locked", b"secret")
    junk = tmp_path / "junk"
    junk.write_text("junk")
    for files, message in (
        (TlsFiles(tmp_path / "none", first.key), "^--tls-cert .* cannot be read: No such file"),
        (TlsFiles(first.cert, second.key), "are not a certificate and its key"),
        (TlsFiles(junk, first.key), "are not a certificate and its key"),
        (locked, "^--tls-key .* is encrypted"),
    ):
        with pytest.raises(ConfigError, match=message):
            files.check()

import pytest

from npuserve.errors import AddressError
from npuserve.server.listening import is_loopback, listen, loopback_names


def test_taken_port_is_told_with_the_remedy() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"port {port}: Address already in use; choose another --port"):
            listen("127.0.0.1", port)


def test_unknown_host_is_told() -> None:
    with pytest.raises(AddressError, match=r"--host no\.such\.host\.invalid is no address"):
        listen("no.such.host.invalid", 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_answers_to_its_own_names_only(host: str) -> None:
    names = loopback_names(host)
    assert is_loopback(host)
    assert names is not None
    assert {"localhost", host} <= names


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_server_for_others_answers_to_any_name(host: str) -> None:
    assert not is_loopback(host)
    assert loopback_names(host) is None

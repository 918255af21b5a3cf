from pathlib import Path

import pytest

from npuserve.errors import ConfigError
from npuserve.server.keys import KeyRing, check_keys, read_key_file, shown_keys


def test_each_key_has_an_owner_that_stays_the_same_and_hides_the_key() -> None:
    first, second = KeyRing(["alpha", "beta"]), KeyRing(["beta"])
    assert first.owner([b"beta"]) == second.owner([b"beta"])
    assert first.owner([b"alpha"]) != first.owner([b"beta"])
    assert "beta" not in str(first.owner([b"beta"]))


@pytest.mark.parametrize("shown", [[], [b""], [b"alph"], [b"alphaa"], [b"ALPHA"], [b"\xff"]])
def test_wrong_key_has_none(shown: list[bytes]) -> None:
    assert KeyRing(["alpha"]).owner(shown) is None


def test_shared_cache_is_one_owner() -> None:
    ring = KeyRing(["alpha", "beta"], share_cache=True)
    assert ring.owner([b"alpha"]) == ring.owner([b"beta"]) == ""


def test_keys_are_shown_as_bearer_or_x_api_key() -> None:
    headers = [(b"authorization", b"bEaReR  k1 "), (b"x-api-key", b"k2"), (b"authorization", b"Basic k3"), (b"x", b"y")]
    assert shown_keys(headers) == [b"k1", b"k2"]


def test_key_file_has_comments_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team\n alpha \n\nbeta\r\n")
    assert read_key_file(file) == ["alpha", "beta"]


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe", b"x" * (2 << 20), None])
def test_useless_key_file_is_refused_without_showing_it(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"^--api-key-file .*keys (holds no key|is not UTF-8|has more|cannot be read)"
    ):
        read_key_file(file)


@pytest.mark.parametrize("key", ["a b", "schlüssel", "a\nb"])
def test_key_that_no_header_carries_is_refused_and_not_printed(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^API key 2 ") as caught:
        check_keys(["fine", key])
    assert key not in str(caught.value)

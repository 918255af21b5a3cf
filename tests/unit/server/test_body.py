import json

import pytest

from npuserve.errors import RequestError
from npuserve.server import body
from npuserve.server.body import parse_object


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_CONTAINERS", 10)
    monkeypatch.setattr(body, "MAX_KEYS", 5)
    monkeypatch.setattr(body, "MAX_VALUES", 20)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize(
    "value",
    [
        {"a": [[]] * 9},
        {str(key): 1 for key in range(6)},
        {"a": [1] * 22},
        {"a": ["x"] * 22},
    ],
)
def test_body_of_too_many_parts_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="send less in one request") as caught:
        parse_object(json.dumps(value).encode())
    assert caught.value.code == "invalid_json"


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize(
    "text", ["{[:,]}" * 50, '\\"{' * 50, "\\" * 51 + "{" * 50, '"' * 60, "\\\\{" * 30 + '\\"', "\n,\u2028{" * 40]
)
def test_what_stands_in_strings_is_not_counted(text: str) -> None:
    assert parse_object(json.dumps({"a": text, "b": [1, 2]}).encode()) == {"a": text, "b": [1, 2]}


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("tail", ['"', '\\"', '{"a":"', '","b":"\\'])
def test_unbalanced_quotes_are_refused_all_the_same(tail: str) -> None:
    with pytest.raises(RequestError):
        parse_object(('{"a":"' + "{,:" * 50 + tail).encode())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\ud800", "\ufffd"),
        (r"\udc00\ud800", "\ufffd\ufffd"),
        (r"\ud83d\ude00", "😀"),
        (r"\\ud800", r"\ud800"),
        (r"\\\ud800", "\\\ufffd"),
        (r"\n\ud800\t", "\n\ufffd\t"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
    ],
)
def test_lone_surrogates_become_replacement_characters(written: str, read: str) -> None:
    assert parse_object(f'{{"a":"{written}"}}'.encode()) == {"a": read}

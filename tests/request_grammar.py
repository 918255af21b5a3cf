"""Malformed and extreme HTTP requests from a grammar: the same ones for the same seed.

A request is a sound one for some route, then a few things are done to it: to values, keys, JSON text, bytes, headers,
the way its body is sent, and the moment its client leaves.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_WEATHER = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "the fox"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "user", "content": "and now?"},
    ],
    "max_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["zz"],
    "stop_token_ids": [5],
    "logit_bias": {"7": 1.5},
    "n": 1,
    "stream": False,
    "stream_options": {"include_usage": True},
    "tools": [_WEATHER],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "logprobs": True,
    "top_logprobs": 2,
    "chat_template_kwargs": {"enable_thinking": False},
    "user": "u",
}
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": {
        "prompt": ["the fox", "jumps"],
        "max_tokens": 3,
        "echo": True,
        "logprobs": 1,
        "n": 1,
        "best_of": 2,
        "stop": "z",
        "stream": False,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
        "regex": None,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "fox"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
        "instructions": "x",
        "max_output_tokens": 3,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "none",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "include": [],
        "store": False,
        "stream": False,
    },
    "/v1/messages": {
        "max_tokens": 3,
        "system": [{"type": "text", "text": "x"}],
        "messages": [
            {"role": "user", "content": "fox"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"},
        "stop_sequences": ["zz"],
        "thinking": {"type": "disabled"},
        "stream": False,
    },
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "fox"}], "system": "x"},
    "/generate": {
        "text": ["fox", "dog"],
        "rid": "mine",
        "sampling_params": {"max_new_tokens": 3, "temperature": 0, "stop": ["z"], "n": 1, "top_p": 0.5},
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 0,
        "stream": False,
    },
    "/tokenize": {"content": "fox <|im_end|>", "with_pieces": True, "add_special": False},
    "/detokenize": {"tokens": [1, 2, 3], "skip_special_tokens": False},
    "/apply-template": {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True},
    "/abort_request": {"rid": "mine"},
    "/flush_cache": {},
}
_OTHER_PATHS = (
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/stats",
    "/props",
    "/openapi.json",
    "/",
    "/x",
)
_METHODS = (
    "GET",
    "HEAD",
    "OPTIONS",
    "PUT",
    "DELETE",
    "PATCH",
    "TRACE",
    "PROPFIND",
    "CONNECT",
    "post",
    "\x00",
    "P" * 300,
)


class Raw:
    """Text to stand in the JSON as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


@dataclass
class FuzzRequest:
    """Bytes to send piece by piece; `ends` closes our side after them, `leaves` does not wait for a reply."""

    pieces: list[bytes]
    ends: bool = False
    leaves: bool = False
    is_head: bool = False
    done: list[str] = field(default_factory=list)


class RequestGrammar:
    """Makes requests; `headers` go with all of them."""

    def __init__(self, seed: int, headers: dict[str, str]) -> None:
        self.chance = random.Random(seed)
        self._headers = headers

    def request(self) -> FuzzRequest:
        chance = self.chance
        path = chance.choice([*BASES, *BASES, *_OTHER_PATHS])
        body = self._mutated(json.loads(json.dumps(BASES.get(path, {}))))
        data = self._broken_text(self._json(body))
        method = "POST" if path in BASES else "GET"
        if chance.random() < 0.05:
            method = chance.choice(_METHODS)
        return self._sent(method, self._broken_path(path), data)

    def _mutated(self, body: Any) -> Any:
        chance = self.chance
        if isinstance(body, dict) and "stream" in body:
            body["stream"] = chance.random() < 0.5
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 6))):
            holders = list(_holders(body))
            if not holders:
                return self._value()
            holder, key = chance.choice(holders)
            match chance.randrange(6):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, dict):
                    holder[self._text()] = self._value()
                case 2:
                    holder[key] = [holder[key]] * chance.choice((1, 2, 20))
                case 3:
                    holder[key] = {self._text()[:50]: holder[key]}
                case _:
                    holder[key] = self._value()
        return self._value() if chance.random() < 0.02 else body

    def _value(self) -> Any:
        chance = self.chance
        makers: list[Callable[[], Any]] = [
            lambda: chance.choice([None, True, False, "", [], {}, 0, 1, -1, 2, 0.5, -0.0, "auto", "required", "none"]),
            lambda: chance.choice([1 << 31, 1 << 63, -(1 << 63) - 1, 1 << 64, 1 << 200, 1e308, -1e308, 5e-324, 1.0]),
            lambda: Raw(chance.choice(["NaN", "Infinity", "-Infinity", "1e999", "01", "+1", "9" * 5000, "nul", "'a'"])),
            lambda: Raw(chance.choice([r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', r'"\x41"', '"\t"', '"unclosed'])),
            self._text,
            lambda: Raw("[" * (depth := chance.choice((3, 63, 64, 65, 500, 100_000))) + "]" * depth),
            lambda: Raw('{"a":' * (depth := chance.choice((3, 62, 65, 1000))) + "1" + "}" * depth),
            lambda: [chance.choice([1, -1, "a", None, {}])] * chance.choice((1, 17, 300, 5000)),
            lambda: {str(number): number for number in range(chance.choice((1, 17, 300)))},
            lambda: [[chance.randrange(700)] * chance.choice((1, 400))],
            lambda: {"type": chance.choice(["text", "image_url", "json_schema", "function", "tool", 5]), "text": "x"},
            lambda: {"type": "json_schema", "json_schema": {"schema": self._schema()}},
        ]
        return chance.choice(makers)()

    def _schema(self) -> Any:
        return self.chance.choice(
            [{}, {"type": "nothing"}, {"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#/no"}}}, True, 5]
        )

    def _text(self) -> str:
        chance = self.chance
        pieces = [
            "a",
            " ",
            "\n",
            "\x00",
            "é",
            "\u202e",
            "😀",
            "<|im_end|>",
            "<think>",
            "{{ x }}",
            "<tool_call>",
            "\ufffe",
            '"',
        ]
        many = chance.choice((1, 1, 5, 50, 2000))
        return "".join(chance.choice(pieces) for _ in range(many))

    def _json(self, value: Any) -> bytes:
        """JSON text, with the raw parts in their places and sometimes a key twice."""
        raws: list[str] = []

        def default(raw: Raw) -> str:
            raws.append(raw.text)
            return f"@raw{len(raws) - 1}@"

        text = json.dumps(value, default=default, ensure_ascii=self.chance.random() < 0.5)
        for number, raw in enumerate(raws):
            text = text.replace(f'"@raw{number}@"', raw)
        if text.startswith("{") and len(text) > 2 and self.chance.random() < 0.03:
            text = '{"stream":5,' + text[1:]
        return text.encode("utf-8", "surrogatepass")

    def _broken_text(self, data: bytes) -> bytes:
        chance = self.chance
        if chance.random() > 0.2:
            return data
        at = chance.randrange(len(data) + 1)
        match chance.randrange(9):
            case 0:
                return data[:at]
            case 1:
                return (
                    data[:at]
                    + chance.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\xf5\x80\x80\x80"))
                    + data[at:]
                )
            case 2:
                return b"\xef\xbb\xbf" + data
            case 3:
                return data.decode("utf-8", "replace").encode("utf-16")
            case 4:
                return data + chance.choice((b"}", b"\n\n", b" x", b"\x00", data))
            case 5:
                return b""
            case 6:
                return b"/* hi */" + data
            case 7:
                return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case _:
                return b" " * chance.choice((1, 1000, 200_000)) + data

    def _broken_path(self, path: str) -> str:
        chance = self.chance
        if chance.random() > 0.08:
            return path
        tricks = (
            "/",
            "//",
            "/../x",
            "%00",
            "%ff%fe",
            "?a=b&a=" + "c" * 50,
            "?timeout=nan&tier=x",
            "#x",
            ";x",
            "/%2e%2e/",
            "a" * 9000,
        )
        return path + chance.choice(tricks)

    def _sent(self, method: str, path: str, data: bytes) -> FuzzRequest:
        chance = self.chance
        made = FuzzRequest([], is_head=method == "HEAD")
        headers = [("Host", "localhost"), *self._headers.items(), *self._odd_headers()]
        version = "HTTP/1.1" if chance.random() < 0.98 else chance.choice(("HTTP/1.0", "HTTP/2.0", "HTTX/1.1", ""))
        way = chance.choices(("length", "chunked", "short", "long", "both", "leave"), (60, 15, 4, 3, 2, 8))[0]
        if way == "chunked" or way == "both":
            headers.append(("Transfer-Encoding", "chunked"))
        if way != "chunked":
            declared = len(data)
            if way == "short":
                declared += chance.choice((1, 100, 40 << 20))
            elif way == "long":
                declared = max(0, declared - chance.choice((1, 10)))
            headers.append(("Content-Length", str(declared)))
        head = f"{method} {path} {version}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
        body = self._chunks(data) if way in ("chunked", "both") else data
        whole = head.encode("latin-1", "replace") + body
        made.ends = way == "short"
        made.leaves = way == "leave"
        if made.leaves:
            whole = whole[: chance.randrange(len(whole)) + 1]
        made.pieces = self._cut(whole)
        return made

    def _odd_headers(self) -> list[tuple[str, str]]:
        chance = self.chance
        if chance.random() > 0.15:
            return [("Connection", "close")] if chance.random() < 0.5 else []
        return chance.choice(
            [
                [
                    (
                        "Content-Type",
                        chance.choice(("text/plain", "multipart/form-data", "application/json; charset=utf-16")),
                    )
                ],
                [("Expect", "100-continue")],
                [("Expect", "200-ok")],
                [("X-Long", "x" * chance.choice((1000, 30_000, 33_000, 70_000)))],
                [(f"X-{number}", "y") for number in range(chance.choice((100, 300)))],
                [("Host", "evil.example")],
                [("Origin", "https://evil.example")],
                [("Connection", "Upgrade"), ("Upgrade", chance.choice(("websocket", "h2c")))],
                [("Connection", "keep-alive, close, , x")],
                [("Authorization", "Bearer " + chance.choice(("", "wrong", "ü")))],
                [("Content-Encoding", "gzip")],
                [("Accept", "nothing/atall")],
                [("X-Odd", "a\x01b")],
                [("Bad Name", "x")],
                [("X-Fold", "a\r\n b")],
                [("Content-Length", "0x10")],
                [("Transfer-Encoding", "gzip, chunked")],
                [("Range", "bytes=0-1")],
            ]
        )

    def _chunks(self, data: bytes) -> bytes:
        chance = self.chance
        made = b""
        while data:
            size = chance.choice((1, 7, 1000, len(data)))
            piece, data = data[:size], data[size:]
            made += b"%x%s\r\n%s\r\n" % (len(piece), chance.choice((b"", b"", b";x=y")), piece)
            if len(made) > 200_000:
                made += b"%x\r\n%s\r\n" % (len(data), data) if data else b""
                data = b""
        end = chance.choices((b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"zz\r\n", b"-1\r\n"), (20, 2, 1, 1))[0]
        return made + end

    def _cut(self, whole: bytes) -> list[bytes]:
        if self.chance.random() < 0.8 or len(whole) < 2:
            return [whole]
        at = self.chance.randrange(1, len(whole))
        return [whole[:at], whole[at:]]


def _holders(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a JSON value: what holds it, and under which key."""
    places: list[tuple[Any, Any]] = []
    rest = [value]
    while rest:
        holder = rest.pop()
        if not isinstance(holder, dict | list):
            continue
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            rest.append(holder[key])
    return places

"""The replies of /generate: whole, or as chunks that carry everything so far, as SGLang sends them."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from npuserve.core import TokenLogprob
from npuserve.server.errors import error_json
from npuserve.server.reply import Choice, Delta, Reply
from npuserve.text.token_bytes import TokenBytes

_encode = msgspec.json.Encoder().encode


class GenerateFrames:
    """`is_list` replies to a batch; log probabilities of the prompt are given from token `prompt_from` on, their
    texts with `with_text`.
    """

    def __init__(
        self,
        reply: Reply,
        name: str,
        table: TokenBytes,
        *,
        is_list: bool,
        prompt_from: int = 0,
        with_text: bool = False,
    ) -> None:
        self._reply = reply
        self._name = name
        self._table = table
        self._is_list = is_list
        self._prompt_from = prompt_from
        self._with_text = with_text
        self._started_s = time.monotonic()
        self._texts = {choice.index: "" for choice in reply.choices}

    def opening(self) -> bytes:
        return b""

    def delta(self, delta: Delta) -> bytes:
        self._texts[delta.choice] += delta.text
        choice = self._reply.choices[delta.choice]
        made = self._made(choice, self._texts[delta.choice])
        if self._is_list:
            made["index"] = delta.choice
        return b"data: " + _encode(made) + b"\n\n"

    def closing(self, choices: Sequence[Choice]) -> bytes:
        return b"data: [DONE]\n\n"

    def error(self, error: BaseException) -> bytes:
        return b"data: " + error_json(error) + b"\n\n"

    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
        made = [self._made(choice, text) for choice, text in zip(choices, texts, strict=True)]
        return _encode(made if self._is_list else made[0])

    def _made(self, choice: Choice, text: str) -> dict[str, Any]:
        finished = choice.finish_reason is not None
        several = len(self._reply.choices) > 1
        facts: dict[str, Any] = {
            "id": f"{self._name}-{choice.index}" if several else self._name,
            "finish_reason": _finish_reason(choice),
            "prompt_tokens": choice.num_prompt_tokens,
            "completion_tokens": choice.num_completion_tokens if finished else len(choice.token_ids),
            "cached_tokens": choice.num_cached_tokens,
        }
        if finished:
            facts["e2e_latency"] = time.monotonic() - self._started_s
        if choice.num_logprobs is not None:
            facts |= self._logprobs(choice)
        return {"text": text, "output_ids": choice.token_ids, "meta_info": facts}

    def _logprobs(self, choice: Choice) -> dict[str, Any]:
        entries = choice.said.entries
        lists: dict[str, Any] = {
            "output_token_logprobs": [self._entry(entry.token, entry.logprob.logprob) for entry in entries]
        }
        if choice.num_logprobs:
            lists["output_top_logprobs"] = [self._top(entry.logprob) for entry in entries]
        if choice.prompt_logprobs and choice.prompt_entries:
            # The first token of a prompt follows nothing: it has no probability.
            prompt: list[TokenLogprob | None] = [None, *choice.prompt_entries]
            pairs = list(zip(choice.prompt_ids, prompt, strict=True))[self._prompt_from :]
            lists["input_token_logprobs"] = [self._entry(token, one and one.logprob) for token, one in pairs]
            if choice.num_logprobs:
                lists["input_top_logprobs"] = [None if one is None else self._top(one) for _, one in pairs]
        return lists

    def _top(self, logprob: TokenLogprob) -> list[Any]:
        return [self._entry(token, value) for token, value in logprob.top]

    def _entry(self, token: int, logprob: float | None) -> list[Any]:
        """SGLang's triple: value, id, text."""
        return [logprob, token, self._table[token].decode("utf-8", "replace") if self._with_text else None]


def _finish_reason(choice: Choice) -> dict[str, Any] | None:
    match choice.finish_reason:
        case None:
            return None
        case "length":
            return {"type": "length", "length": choice.num_completion_tokens}
        case _:
            stop_string = choice.pipeline.stop_string
            matched = stop_string if stop_string is not None else choice.token_ids[-1] if choice.token_ids else None
            return {"type": "stop", "matched": matched}

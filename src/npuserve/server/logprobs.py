"""Log probabilities as OpenAI's two APIs give them."""

from collections.abc import Sequence

from npuserve.core import TokenLogprob
from npuserve.server.reply import Choice
from npuserve.server.wire import ChatLogprob, ChatLogprobs, ChatTopLogprob, CompletionLogprobs
from npuserve.text.detokenizer import Detokenizer
from npuserve.text.piece import TokenEntry
from npuserve.text.token_bytes import TokenBytes


def chat_logprobs(entries: Sequence[TokenEntry], table: TokenBytes) -> ChatLogprobs | None:
    """The entries of a chat's delta or message; None without any."""
    if not entries:
        return None
    return ChatLogprobs(content=[_chat_entry(entry, table) for entry in entries])


def _chat_entry(entry: TokenEntry, table: TokenBytes) -> ChatLogprob:
    own = table[entry.token]
    top = [
        ChatTopLogprob(table[token].decode("utf-8", "replace"), logprob, list(table[token]))
        for token, logprob in entry.logprob.top
    ]
    return ChatLogprob(own.decode("utf-8", "replace"), entry.logprob.logprob, list(own), top)


class CompletionEntries:
    """Makes the parallel lists of one choice, delta by delta."""

    def __init__(self, choice: Choice, table: TokenBytes, *, echo: bool) -> None:
        self._choice = choice
        self._table = table
        self._echo = echo
        self._shift = len(choice.lead)
        self._prompt_is_due = echo

    def take(self, entries: Sequence[TokenEntry]) -> CompletionLogprobs | None:
        """The lists of `entries`, after those of an echoed prompt when they were not given yet; None without any."""
        lists = CompletionLogprobs([], [], [], [])
        if self._prompt_is_due:
            self._prompt_is_due = False
            self._add_prompt(lists)
        for entry in entries:
            self._add(lists, entry.token, entry.logprob, self._shift + entry.offset)
        return lists if lists.tokens else None

    def _add_prompt(self, lists: CompletionLogprobs) -> None:
        choice = self._choice
        text = Detokenizer(self._table)
        offset = 0
        for place, token in enumerate(choice.prompt_ids):
            self._add(lists, token, choice.prompt_entries[place - 1] if place else None, min(offset, self._shift))
            offset += len(text.push((token,)))

    def _add(self, lists: CompletionLogprobs, token: int, logprob: TokenLogprob | None, offset: int) -> None:
        name = self._name(token)
        lists.tokens.append(name)
        lists.text_offset.append(offset)
        if logprob is None:
            lists.token_logprobs.append(None)
            lists.top_logprobs.append(None)
            return
        lists.token_logprobs.append(logprob.logprob)
        # The token's own value wins over that of another one with the same text.
        top = {self._name(other): value for other, value in reversed(logprob.top)}
        lists.top_logprobs.append({**top, name: logprob.logprob})

    def _name(self, token: int) -> str:
        """The token's text, its bytes in hexadecimal where they are no text: names of different tokens differ."""
        own = self._table[token]
        try:
            return own.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)

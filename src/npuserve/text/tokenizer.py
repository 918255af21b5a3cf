"""Text to token ids."""

import json
import secrets
import threading
from typing import Any

import tokenizers

from npuserve.text.shield import ControlTokens, Shield
from npuserve.text.token_bytes import TokenBytes


class Tokenizer:
    """A checkpoint's tokenizer as the server uses it; safe to use from several threads.

    `vocab_size` counts added tokens; the model's logits may be wider (padding).
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._plain: tokenizers.Tokenizer | None = None
        self._plain_lock = threading.Lock()
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.control_tokens = ControlTokens(token.content for token in added.values() if token.special)
        self.token_bytes = TokenBytes(tokenizer)
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)

    def id_of(self, spelling: str) -> int | None:
        """The token that is spelled so, None without one."""
        token_id: int | None = self._tokenizer.token_to_id(spelling)
        return token_id

    def unspelled_definition(self) -> str:
        """Its tokenizer.json, in which control tokens have names that nobody can guess: no text spells one of them."""
        definition: dict[str, Any] = json.loads(self._tokenizer.to_str())
        added, model = definition["added_tokens"], definition["model"]
        secret = secrets.token_hex(16)
        names = {token["content"]: f"{secret}{token['content']}" for token in added if token["special"]}
        for token in added:
            token["content"] = names.get(token["content"], token["content"])
        vocab = model["vocab"]
        if isinstance(vocab, dict):
            model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
        else:
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        return json.dumps(definition)

    def shield(self) -> Shield:
        """A fresh shield for the strings of one request."""
        return Shield(self.control_tokens)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: control tokens are found in it and the tokenizer's own (BOS) are put round it."""
        return _encoding(self._tokenizer, text, add_special_tokens=True).ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text in which control tokens are ordinary characters."""
        return _encoding(self._plain_tokenizer(), text).ids

    def encode_rendered(self, rendered: str, shield: Shield) -> list[int]:
        """Ids of a rendered chat template whose client strings went through `shield`.

        Control tokens written by the template are found; those a client spelled are plain text. Where none was
        spelled this is the encoding of the whole string. Otherwise the text between two control tokens is encoded
        by itself, which gives the same ids: tokenizers split there before they merge anything.
        """
        if not shield.used:
            return _encoding(self._tokenizer, rendered).ids
        encoding = _encoding(self._tokenizer, rendered)
        ids: list[int] = []
        done = 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.special_ids:
                if start > done:
                    ids += self.encode_plain(shield.restore(rendered[done:start]))
                ids.append(token_id)
                done = end
        if done < len(rendered):
            ids += self.encode_plain(shield.restore(rendered[done:]))
        return ids

    def _plain_tokenizer(self) -> tokenizers.Tokenizer:
        # The flag belongs to the tokenizer, not to the call, so plain text has its own copy, made when first needed.
        with self._plain_lock:
            if self._plain is None:
                plain = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
                plain.encode_special_tokens = True
                self._plain = plain
            return self._plain


def _encoding(tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = False) -> tokenizers.Encoding:
    """One text as a batch: `encode` keeps the interpreter to itself, half a second for half a million characters."""
    return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]

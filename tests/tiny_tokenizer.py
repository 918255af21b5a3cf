"""A small byte-level tokenizer with ChatML's control tokens, made the same on every machine."""

from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from npuserve.text.token_bytes import byte_of_character

CORPUS = (
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital of France is Paris.",
    "You are a helpful assistant. Please answer the question. Zürich, naïve café, 東京 and 😀 are text as well.",
    "def main():\n    print('hello, world')\n\nuser assistant system im_start im_end endoftext",
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@cache
def _trained() -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    return tokenizer.to_str()


def tiny_tokenizer() -> tokenizers.Tokenizer:
    """A new tokenizer: ids 0, 1, 2 are the control tokens, every byte has a token of its own."""
    return tokenizers.Tokenizer.from_str(_trained())


def byte_tokens(text: bytes) -> list[int]:
    """Ids of the tiny tokenizer that stand for one byte of `text` each."""
    tokenizer = tiny_tokenizer()
    character_of = {byte: character for character, byte in byte_of_character().items()}
    ids = [tokenizer.token_to_id(character_of[byte]) for byte in text]
    return [token_id for token_id in ids if token_id is not None]

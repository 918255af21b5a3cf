"""How long the mask of allowed tokens takes, token by token, on SmolLM2's vocabulary of 49k.

python bench/grammar_masks.py [--model smollm2]
"""

import argparse
import json
import time
from typing import Any

from npuserve.checkpoints.checkpoint import open_checkpoint
from npuserve.checkpoints.locate import ensure_checkpoint
from npuserve.text.grammar import Grammar, json_grammar, regex_grammar
from npuserve.text.grammar_compiler import GrammarCompiler
from npuserve.text.tokenizer import Tokenizer

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "born", "tags", "notes"],
    "additionalProperties": False,
}
VALUE = {
    "name": "Anna Müller",
    "born": "1993-04-30",
    "tags": ["red", "blue"],
    "notes": ["She said that it is a long way to 東京, and that she would go by train.", "x" * 40] * 4,
}
CASES: list[tuple[str, Grammar, str]] = [
    ("json_object", json_grammar({"type": "object"}, "any"), json.dumps(VALUE, ensure_ascii=False)),
    ("json_schema", json_grammar(PERSON, "schema"), json.dumps(VALUE, ensure_ascii=False)),
    ("regex", regex_grammar(r"([a-z]+[ ,.])*", "regex"), "the quick brown fox jumps over the lazy dog." * 8),
]


def measure(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, text: str) -> tuple[float, list[float]]:
    """Seconds to compile, and from each token chosen to the mask of the next."""
    started_s = time.perf_counter()
    constraint = compiler.compile(grammar)
    compile_s = time.perf_counter() - started_s
    times_s: list[float] = []
    for token in tokenizer.encode_plain(text):
        started_s = time.perf_counter()
        constraint.accept(token)
        constraint.allowed()
        times_s.append(time.perf_counter() - started_s)
    return compile_s, times_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    checkpoint = open_checkpoint(ensure_checkpoint(parser.parse_args().model))
    tokenizer = Tokenizer(checkpoint.tokenizer())
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, checkpoint.special_tokens.stop_ids)
    compiler.compile(regex_grammar("warm", "regex"))
    print(f"{'grammar':12} {'tokens':>6} {'compile ms':>10} {'mean us':>8} {'p99 us':>8} {'most us':>8}")
    for name, grammar, text in CASES:
        compile_s, times_s = measure(compiler, tokenizer, grammar, text)
        mean_us = 1e6 * sum(times_s) / len(times_s)
        p99_us = 1e6 * sorted(times_s)[int(0.99 * len(times_s))]
        most_us = 1e6 * max(times_s)
        print(f"{name:12} {len(times_s):6} {1e3 * compile_s:10.1f} {mean_us:8.0f} {p99_us:8.0f} {most_us:8.0f}")


if __name__ == "__main__":
    main()

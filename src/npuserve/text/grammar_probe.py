"""Run as a program: compiles each grammar that comes in and says when it is done.

Some grammars overflow the compiler's stack or keep it busy for minutes, which must not happen in the server. They
come as eight bytes of length (little endian) and UTF-8; the answer is one byte. What the compiler thinks of the grammar
does not matter here, only that it lives.
"""

import resource
import sys
import threading

import llguidance

# The server's own threads have four times as much: what fits here fits there.
STACK_BYTES = 16 << 20
_MEMORY_BYTES = 2 << 30
_NUM_TOKENS = 16


def probe(text: str, tokenizer: llguidance.LLTokenizer) -> None:
    """Compile `text` and take some steps along it."""
    limits = llguidance.LLParserLimits(verbose_errors=False)
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
    for _ in range(_NUM_TOKENS):
        if matcher.is_error() or matcher.is_stopped():
            return
        mask = matcher.compute_bitmask()
        allowed = next((8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1), None)
        if allowed is None:
            return
        matcher.consume_token(allowed)


def main() -> None:
    """Serve standard input until it is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    tokenizer = llguidance.LLTokenizer("byte")
    while header := sys.stdin.buffer.read(8):
        text = sys.stdin.buffer.read(int.from_bytes(header, "little")).decode()
        thread = threading.Thread(target=probe, args=(text, tokenizer))
        thread.start()
        thread.join()
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

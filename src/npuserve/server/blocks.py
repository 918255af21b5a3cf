"""A reply as a sequence of blocks (thoughts, text, calls), which the Responses and the Messages API are made of."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from npuserve.server.reply import Delta

BlockKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Block:
    """One block, in the making or done. `call_id` and `name` are a call's, whose text are its arguments."""

    index: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class BlockWriter(Protocol):
    """Puts the life of a block into bytes."""

    def opened(self, block: Block) -> bytes: ...

    def added(self, block: Block, text: str) -> bytes: ...

    def closed(self, block: Block) -> bytes: ...


class Blocks:
    """Cuts deltas into blocks: a new one begins where the kind changes and with every call."""

    def __init__(self, writer: BlockWriter) -> None:
        self.blocks: list[Block] = []
        self._writer = writer
        self._open: Block | None = None

    def feed(self, delta: Delta) -> bytes:
        """What `delta` adds."""
        written: list[bytes] = []
        if delta.reasoning:
            written += self._add("reasoning", delta.reasoning)
        if delta.text:
            written += self._add("text", delta.text)
        for call in delta.calls:
            if call.name is not None:
                written.append(self.close())
                written.append(self._begin("call", call.id or "", call.name))
            if call.arguments:
                written += self._add("call", call.arguments)
        return b"".join(written)

    def close(self) -> bytes:
        """End the block that is open, if one is."""
        block, self._open = self._open, None
        return b"" if block is None else self._writer.closed(block)

    def _add(self, kind: BlockKind, text: str) -> list[bytes]:
        written = []
        if self._open is None or self._open.kind != kind:
            written += [self.close(), self._begin(kind)]
        block = self.blocks[-1]
        block.pieces.append(text)
        return [*written, self._writer.added(block, text)]

    def _begin(self, kind: BlockKind, call_id: str = "", name: str = "") -> bytes:
        block = self._open = Block(len(self.blocks), kind, call_id, name)
        self.blocks.append(block)
        return self._writer.opened(block)

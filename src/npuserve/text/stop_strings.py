"""Finding stop strings in text that comes in pieces."""

import re
from collections import deque
from collections.abc import Sequence


class _Node:
    """A prefix of one or more stop strings, `depth` characters long.

    `match` is the length of the longest stop string that ends here, 0 for none.
    """

    __slots__ = ("children", "depth", "fallback", "match")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.children: dict[str, _Node] = {}
        self.fallback: _Node | None = None
        self.match = 0


class StopStrings:
    """Aho and Corasick's automaton over the stop strings of one request; linear in the text.

    Text that may be the beginning of a stop string is held until it is or is not. The match that is complete
    first wins, of two that end together the longer one.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._include = include
        self._root = _build(stops)
        self._node = self._root
        self._held = ""
        self._first = re.compile("[" + "".join(map(re.escape, self._root.children)) + "]") if stops else None
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The part of all text so far that may be sent and was not yet; sets `found` at a match.

        What follows a match is dropped, the match itself too unless `include` is set.
        """
        if self._first is None:
            return text
        node, root, start = self._node, self._root, len(self._held)
        text = self._held + text
        position = start
        while position < len(text):
            if node is root:
                candidate = self._first.search(text, position)
                if candidate is None:
                    break
                position = candidate.start()
            character = text[position]
            node = _advance(node, character, root)
            position += 1
            if node.match:
                return self._stop(text, position, node.match)
        self._node = node
        sendable = len(text) - node.depth
        self._held = text[sendable:]
        return text[:sendable]

    def finish(self) -> str:
        """Held text that turned out to be no stop string."""
        held, self._held, self._node = self._held, "", self._root
        return held

    def _stop(self, text: str, end: int, length: int) -> str:
        self.found = text[end - length : end]
        self._held, self._node = "", self._root
        return text[:end] if self._include else text[: end - length]


def _advance(node: _Node, character: str, root: _Node) -> _Node:
    while True:
        child = node.children.get(character)
        if child is not None:
            return child
        if node.fallback is None:
            return root
        node = node.fallback


def _build(stops: Sequence[str]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.children.setdefault(character, _Node(node.depth + 1))
        node.match = len(stop)
    queue = deque(root.children.values())
    for node in queue:
        node.fallback = root
    while queue:
        node = queue.popleft()
        for character, child in node.children.items():
            assert node.fallback is not None
            child.fallback = _advance(node.fallback, character, root)
            child.match = child.match or child.fallback.match
            queue.append(child)
    return root

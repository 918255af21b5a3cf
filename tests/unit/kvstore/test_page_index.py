import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from npuserve.kvstore.index import PageIndex

ROOT = b"root"


def key(name: str) -> bytes:
    return name.encode()


def chain(index: PageIndex, *names: str, parent: bytes = ROOT) -> list[bytes]:
    """Add one-byte pages, each behind the one before; what was evicted."""
    evicted = []
    for name in names:
        evicted += index.add(key(name), parent, 1)
        parent = key(name)
    return evicted


def test_the_page_used_longest_ago_goes_first() -> None:
    index = PageIndex(3)
    chain(index, "a")
    chain(index, "b")
    chain(index, "c")
    index.touch(b"a")
    assert chain(index, "d") == [b"b"]
    assert list(index) == [b"c", b"a", b"d"]


def test_size_is_counted_in_bytes() -> None:
    index = PageIndex(10)
    index.add(b"a", ROOT, 4)
    index.add(b"b", ROOT, 4)
    assert index.add(b"c", ROOT, 9) == [b"a", b"b"]
    assert index.size_bytes == 9


def test_children_go_before_their_parents() -> None:
    index = PageIndex(3)
    chain(index, "a", "b", "c")
    assert chain(index, "x", "y") == [b"c", b"b"]


def test_a_use_of_a_page_is_a_use_of_all_before_it() -> None:
    index = PageIndex(4)
    chain(index, "a", "b")
    chain(index, "x", "y")
    index.touch(b"b")
    assert chain(index, "p") == [b"y"]
    assert chain(index, "q") == [b"x"]


def test_a_pinned_page_stays_whatever_comes() -> None:
    index = PageIndex(2)
    chain(index, "a")
    index.pin(b"a")
    chain(index, "b")
    assert chain(index, "c") == [b"b"]
    assert index.unpin(b"a") == []
    assert chain(index, "d") == [b"a"]


def test_a_page_that_finds_no_room_is_evicted_itself() -> None:
    index = PageIndex(2)
    assert index.add(b"big", ROOT, 3) == [b"big"]
    chain(index, "a", "b")
    assert chain(index, "c", parent=b"b") == [b"c"]
    assert set(index) == {b"a", b"b"}


def test_too_much_that_was_pinned_goes_when_it_is_given_back() -> None:
    index = PageIndex(1)
    chain(index, "a")
    index.pin(b"a")
    assert index.resize(0) == []
    assert index.unpin(b"a") == [b"a"]


def test_a_removed_page_leaves_its_children() -> None:
    index = PageIndex(9)
    chain(index, "a", "b", "c")
    assert index.remove(b"b")
    assert not index.remove(b"b")
    assert b"c" in index
    index.check()
    index.add(b"b", b"a", 1)
    assert index.resize(1) == [b"c", b"b"]


def test_children_are_listed_with_their_tokens_newest_first() -> None:
    index = PageIndex(9)
    index.add(b"a", ROOT, 1, (1,))
    index.add(b"b", ROOT, 1, (2, 3))
    assert list(index.children(ROOT)) == [(b"b", (2, 3)), (b"a", (1,))]
    assert list(index.children(b"b")) == []


class IndexMachine(RuleBasedStateMachine):
    """Any tree, any use: no parent goes before its child, nothing pinned goes, and the books add up."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PageIndex(12)
        self.parents: dict[bytes, bytes] = {}
        self.pins: list[bytes] = []

    @rule(data=st.data(), size=st.integers(1, 4))
    def add(self, data: st.DataObject, size: int) -> None:
        parent = data.draw(st.sampled_from([ROOT, *self.parents]))
        name = f"{len(self.parents)}".encode()
        self.parents[name] = parent
        held = set(self.index) | {name}
        for gone in self.index.add(name, parent, size):
            held.discard(gone)
            assert gone not in self.pins
            assert all(self.parents[other] != gone for other in held)
        assert held == set(self.index)

    @precondition(lambda self: len(self.index) > 0)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        self.index.touch(data.draw(st.sampled_from(sorted(self.index))))

    @precondition(lambda self: len(self.index) > 0)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        self.pins.append(data.draw(st.sampled_from(sorted(self.index))))
        self.index.pin(self.pins[-1])

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.index.unpin(self.pins.pop())

    @precondition(lambda self: len(self.index) > 0)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.index)))
        if gone not in self.pins:
            self.index.remove(gone)

    @invariant()
    def books_add_up(self) -> None:
        self.index.check()


IndexMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestIndexKeepsItsPromises = IndexMachine.TestCase


def test_wrong_books_are_noticed() -> None:
    index = PageIndex(9)
    chain(index, "a")
    index.size_bytes += 1
    with pytest.raises(AssertionError, match="2 bytes are booked"):
        index.check()

from npuserve.core import Request, SamplingParams
from npuserve.engine.sequence import Sequence
from npuserve.engine.waiting_line import WaitingLine


def sequence(name: str, *, behind: bool = False) -> Sequence:
    made = Sequence(Request(name, (1, 2, 3), SamplingParams()))
    made.num_computed = 0 if behind else 2
    return made


def popped(line: WaitingLine, count: int, num_running: int = 0) -> list[str]:
    """Ids of the next ones; each goes back to the end after its turn, as it came."""
    names = []
    for _ in range(count):
        taken = line.pop(num_running)
        assert taken is not None
        names.append(taken.id)
        line.pause(taken)
    return names


def test_new_requests_start_in_order_until_enough_take_part() -> None:
    line = WaitingLine(2)
    for name in "abc":
        line.add(sequence(name))
    assert line.has_next(0)
    first, second = line.pop(0), line.pop(1)
    assert first is not None
    assert second is not None
    assert [first.id, second.id] == ["a", "b"]
    assert not line.has_next(2)
    assert line.pop(2) is None
    assert [waiting.id for waiting in line.queued] == ["c"]


def test_turns_go_round() -> None:
    line = WaitingLine(9)
    for name in "abc":
        line.pause(sequence(name))
    assert popped(line, 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_every_second_turn_is_for_the_oldest_that_is_behind() -> None:
    line = WaitingLine(9)
    for name in "abc":
        line.pause(sequence(name))
    line.pause(sequence("long", behind=True))
    assert popped(line, 6) == ["long", "a", "long", "b", "long", "c"]


def test_a_new_prompt_that_may_start_is_behind_too() -> None:
    line = WaitingLine(3)
    line.pause(sequence("a"))
    line.add(sequence("new", behind=True))
    line.add(sequence("later", behind=True))
    assert popped(line, 1, num_running=1) == ["new"]
    assert [waiting.id for waiting in line.queued] == ["later"]


def test_who_has_ended_waits_no_more() -> None:
    line = WaitingLine(9)
    queued, paused = sequence("queued"), sequence("paused")
    line.add(queued)
    line.pause(paused)
    assert len(line) == 2
    line.remove(queued)
    line.remove(paused)
    assert len(line) == 0
    assert line.pop(0) is None

import numpy as np
import pytest
from numpy.typing import NDArray

from npuserve.core import Row
from npuserve.devices.null import NullDevice
from npuserve.errors import DeviceError, DeviceUnavailableError


def rows_of(slot: int, tokens: list[int], start: int = 0) -> list[Row]:
    """Rows of `tokens` from position `start` on, all wanting logits."""
    return [Row(slot, start + at, token, True) for at, token in enumerate(tokens)]


def small(*, recurrent: bool = False) -> NullDevice:
    return NullDevice(vocab_size=100, num_slots=2, max_rows=6, context_length=10, recurrent=recurrent)


def test_logits_depend_on_the_slot_history_only() -> None:
    alone, company = small(), small()
    expected = alone.step(rows_of(0, [1, 2, 3])).logits.copy()
    company.step(rows_of(1, [9]))
    first = company.step([*rows_of(1, [8], start=1), *rows_of(0, [1, 2])]).logits[1:].copy()
    second = company.step([*rows_of(0, [3], start=2), *rows_of(1, [7], start=2)]).logits[:1].copy()
    np.testing.assert_array_equal([*first, *second], expected)


def test_an_earlier_token_changes_the_logits() -> None:
    device = small()
    one = device.step(rows_of(0, [1, 2, 3])).logits[-1].copy()
    other = device.step(rows_of(1, [4, 2, 3])).logits[-1].copy()
    assert one.argmax() != other.argmax()


def test_rows_that_do_not_want_logits_have_none() -> None:
    result = small().step([Row(0, 0, 1, False), Row(0, 1, 2, True), Row(1, 0, 1, False)])
    assert result.logits.shape == (1, 100)
    assert small().step([Row(0, 0, 1, False)]).logits.shape == (0, 100)


def test_one_token_is_the_likeliest_and_no_two_tie() -> None:
    logits = NullDevice(vocab_size=49152).step(rows_of(0, [1, 2, 3, 4])).logits
    for row in logits:
        assert len(np.unique(row)) == 49152
        assert np.sum(row > 15.0) == 6


def test_a_rewritten_position_replaces_the_old_context() -> None:
    device, fresh = small(), small()
    device.step(rows_of(0, [1, 2, 3]))
    rewritten = device.step(rows_of(0, [5], start=1)).logits.copy()
    np.testing.assert_array_equal(rewritten, fresh.step(rows_of(0, [1, 5])).logits[1:])


def test_positions_above_a_rewritten_one_are_forgotten() -> None:
    device = small()
    device.step(rows_of(0, [1, 2, 3]))
    device.step(rows_of(0, [5], start=0))
    with pytest.raises(ValueError, match="gap; only 1 are written"):
        device.step(rows_of(0, [4], start=3))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "1 to 6 rows, not 0"),
        (rows_of(0, [1] * 7), "1 to 6 rows, not 7"),
        ([Row(2, 0, 1, True)], "slot 2"),
        ([Row(-1, 0, 1, True)], "slot -1"),
        ([Row(0, 10, 1, True)], "position 10 is outside the context of 10"),
        ([Row(0, 0, 100, True)], "token 100 is outside the vocabulary of 100"),
        ([Row(0, 1, 1, True)], "follows a gap; only 0 are written"),
        ([Row(0, 0, 1, True), Row(0, 2, 1, True)], "from position 0 to 2"),
        ([Row(0, 0, 1, True), Row(0, 0, 1, True)], "from position 0 to 0"),
        ([Row(0, 0, 1, True), Row(1, 0, 1, True), Row(0, 1, 1, True)], "slot 0 do not stand together"),
    ],
)
def test_rows_that_break_a_rule_are_refused(rows: list[Row], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().step(rows)


def test_a_refused_step_writes_nothing() -> None:
    device = small()
    with pytest.raises(ValueError, match="token 100"):
        device.step(rows_of(0, [1, 2, 100]))
    with pytest.raises(ValueError, match="only 0 are written"):
        device.step(rows_of(0, [3], start=1))


def test_a_recurrent_state_only_goes_on_or_starts_anew() -> None:
    device = small(recurrent=True)
    device.step(rows_of(0, [1, 2, 3]))
    with pytest.raises(ValueError, match="recurrent state at 3 cannot go on at position 2"):
        device.step(rows_of(0, [3], start=2))
    device.step(rows_of(0, [4], start=3))
    device.step(rows_of(0, [1]))


def test_the_script_is_told_the_history_and_decides_the_next_token() -> None:
    device = NullDevice(vocab_size=100, script=lambda history: sum(history) % 100)
    assert device.step(rows_of(0, [1, 2, 50])).logits.argmax(axis=1).tolist() == [1, 3, 53]
    assert device.step(rows_of(0, [60], start=3)).logits.argmax(axis=1).tolist() == [13]


def test_a_step_told_to_fail_writes_nothing() -> None:
    device = NullDevice(fail_at_step={1}, failure=DeviceUnavailableError)
    device.step(rows_of(0, [1]))
    with pytest.raises(DeviceUnavailableError, match="fail at step 1"):
        device.step(rows_of(0, [2], start=1))
    with pytest.raises(ValueError, match="only 1 are written"):
        device.step(rows_of(0, [3], start=2))
    assert device.num_steps == 3


def test_a_closed_device_refuses_to_step() -> None:
    device = small()
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.step(rows_of(0, [1]))


def paged(*, recurrent: bool = False) -> NullDevice:
    return NullDevice(vocab_size=1000, num_slots=2, max_rows=200, context_length=300, recurrent=recurrent)


def saved(device: NullDevice, slot: int, *pages: int) -> list[NDArray[np.uint8]]:
    return [device.save(slot, page) for page in pages]


HISTORY = [at * 7 % 1000 for at in range(140)]


def test_restored_pages_bring_the_history_back() -> None:
    device = paged()
    device.step(rows_of(0, HISTORY))
    expected = device.step(rows_of(0, [5], start=140)).logits.copy()
    device.step(rows_of(1, [1, 2, 3]))
    device.restore(1, 0, saved(device, 0, 0, 1))
    device.step(rows_of(1, HISTORY[128:], start=128))
    np.testing.assert_array_equal(device.step(rows_of(1, [5], start=140)).logits, expected)


def test_rows_may_follow_inside_a_restored_page_but_not_behind_it() -> None:
    device = paged()
    device.step(rows_of(0, HISTORY))
    device.restore(1, 0, saved(device, 0, 0))
    with pytest.raises(ValueError, match="only 64 are written"):
        device.step(rows_of(1, [5], start=65))
    inside = device.step(rows_of(1, [5], start=10)).logits.copy()
    np.testing.assert_array_equal(paged().step(rows_of(0, [*HISTORY[:10], 5])).logits[-1:], inside)


def test_a_page_of_another_place_or_context_is_refused() -> None:
    device = paged()
    device.step(rows_of(0, HISTORY))
    pages = saved(device, 0, 0, 1)
    with pytest.raises(ValueError, match="follows a gap"):
        device.restore(1, 1, pages[1:])
    with pytest.raises(ValueError, match="not page 0"):
        device.restore(1, 0, pages[1:])
    device.step(rows_of(1, [9] * 64))
    with pytest.raises(ValueError, match="not page 1"):
        device.restore(1, 1, pages[1:])


def test_an_incomplete_page_is_not_saved() -> None:
    device = paged()
    device.step(rows_of(0, HISTORY))
    with pytest.raises(ValueError, match="page 2 of slot 0 is not complete: 140"):
        device.save(0, 2)


def test_a_recurrent_state_is_saved_where_it_stands_and_goes_on_from_there() -> None:
    device = paged(recurrent=True)
    device.step(rows_of(0, HISTORY[:64]))
    first = saved(device, 0, 0)
    device.step(rows_of(0, HISTORY[64:100], start=64))
    with pytest.raises(ValueError, match="state at 100 cannot be saved with page 0"):
        device.save(0, 0)
    second = saved(device, 0, 1)
    expected = device.step(rows_of(0, [5], start=100)).logits.copy()
    device.step(rows_of(1, [1]))
    device.restore(1, 0, [*first, *second])
    np.testing.assert_array_equal(device.step(rows_of(1, [5], start=100)).logits, expected)
    with pytest.raises(ValueError, match="cannot go on at position 70"):
        device.step(rows_of(1, [5], start=70))

from npuserve.engine.rate import WINDOW_S, Rate


def test_a_rate_is_the_average_of_the_last_seconds() -> None:
    rate = Rate(0.0)
    for second in range(100):
        rate.add(10 if second >= 50 else 1000, float(second))
    assert rate.per_s(99.9) == 10.0


def test_a_rate_at_the_start_is_that_of_the_time_there_was() -> None:
    rate = Rate(100.0)
    rate.add(6, 101.0)
    assert rate.per_s(102.0) == 3.0


def test_what_is_old_is_forgotten() -> None:
    rate = Rate(0.0)
    rate.add(6, 1.0)
    assert rate.per_s(5.0) > 0
    assert rate.per_s(1.0 + WINDOW_S + 1.0) == 0.0


def test_a_rate_of_nothing_is_zero() -> None:
    assert Rate(5.0).per_s(5.0) == 0.0

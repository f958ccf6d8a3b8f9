from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.restarts import Generations, RestartBudget


def test_waits_double_up_to_the_longest_and_begin_anew_after_a_quiet_window():
    budget = RestartBudget(6, 100.0, first_wait_s=1.0, longest_wait_s=5.0)
    assert [budget.take(float(now)) for now in range(6)] == [1, 2, 4, 5, 5, 5]
    assert budget.take(99.9) is None
    assert budget.take(200.0) == 1


def test_restarts_count_until_the_window_has_passed_since_them():
    budget = RestartBudget(1, 10.0)
    assert budget.take(0.0) is not None
    assert budget.take(9.99) is None
    assert budget.take(10.0) is not None


def test_no_restart_is_allowed_where_none_is_asked_for():
    assert RestartBudget(0, 10.0).take(5.0) is None


@given(
    most=st.integers(0, 5),
    window=st.floats(0.5, 50),
    gaps=st.lists(st.floats(0, 30), min_size=1, max_size=60),
)
def test_no_window_ever_sees_more_restarts_than_allowed_and_none_is_refused_without_need(most, window, gaps):
    budget, now, taken = RestartBudget(most, window), 0.0, []
    for gap in gaps:
        now += gap
        recent = [then for then in taken if now - then < window]
        wait = budget.take(now)
        assert (wait is None) == (len(recent) >= most)
        if wait is not None:
            assert 0 < wait <= 30
            taken.append(now)


def test_only_the_present_life_of_a_member_counts_and_those_to_come():
    generations = Generations()
    assert generations.lives(3, 0)
    generations.begin([3, 4], 2)
    assert [generations.lives(3, generation) for generation in range(4)] == [False, False, True, True]
    assert generations.lives(5, 0)


def test_a_life_does_not_begin_twice():
    generations = Generations()
    generations.begin([0], 2)
    generations.begin([0], 1)
    assert not generations.lives(0, 1)

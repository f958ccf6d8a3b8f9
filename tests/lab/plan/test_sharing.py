"""Calls that overlapped in one process, and how long each would have been alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.lab.plan.calibrate import without_contention

TIMES = st.floats(0, 100, allow_nan=False).map(lambda value: round(value, 3))
CALLS = st.lists(st.tuples(TIMES, TIMES).map(sorted), min_size=1, max_size=20)


def test_a_call_by_itself_took_what_it_took():
    assert without_contention([0.0, 3.0], [2.0, 4.0]).tolist() == [2.0, 1.0]


def test_calls_beside_each_other_have_equal_shares():
    assert without_contention([0.0, 0.0, 1.0], [4.0, 1.0, 4.0]) == pytest.approx([0.5 + 1.5, 0.5, 1.5])


@given(CALLS)
def test_together_they_are_the_time_in_which_any_was_under_way(calls):
    began, ended = np.array(calls).T
    seconds = without_contention(began, ended)
    covered, until = 0.0, 0.0
    for start, end in sorted(calls):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    assert seconds.sum() == pytest.approx(covered, abs=1e-6)
    assert (seconds >= -1e-9).all()
    assert (seconds <= ended - began + 1e-9).all()

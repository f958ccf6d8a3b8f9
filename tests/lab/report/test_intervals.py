from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.lab.report.timelines import difference, intersection, length, union

ends = st.integers(0, 30)
intervals = st.lists(st.tuples(ends, ends).map(lambda pair: (min(pair), max(pair))), max_size=12)


def cells(some):
    """The seconds of intervals with whole ends, one by one."""
    return {second for began, ended in some for second in range(began, ended)}


def is_union(some):
    return all(began < ended for began, ended in some) and all(one[1] < two[0] for one, two in pairwise(some))


@given(intervals)
def test_a_union_has_every_second_once(some):
    joined = union(some)
    assert is_union(joined)
    assert cells(joined) == cells(some)
    assert length(joined) == len(cells(some))


@given(intervals, intervals)
def test_an_intersection_has_the_seconds_of_both(a, b):
    common = intersection(union(a), union(b))
    assert union(common) == common
    assert cells(common) == cells(a) & cells(b)


@given(intervals, intervals)
def test_a_difference_has_the_seconds_of_one_alone(a, b):
    left = difference(union(a), union(b))
    assert is_union(left)
    assert cells(left) == cells(a) - cells(b)


@given(intervals, intervals)
def test_what_is_taken_and_what_is_left_are_the_whole(a, b):
    whole, taken = union(a), union(b)
    both = length(intersection(whole, taken)) + length(difference(whole, taken))
    assert both == length(whole)


def test_nothing_has_no_seconds():
    assert union([]) == union([(1, 1)]) == intersection([], [(0, 1)]) == difference([], [(0, 1)]) == []

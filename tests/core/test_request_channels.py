import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.request_channels import (
    BATCHES_BETWEEN_LOOKS,
    FIRST_PASS_S,
    LONGEST_PATIENCE_S,
    SHORTEST_PASS_S,
    Take,
    TakeOrder,
    channel_nodes,
)


@pytest.mark.parametrize(
    ("env", "inference", "nodes"),
    [
        pytest.param("0", "0", "0", id="one node"),
        pytest.param("0101", "01", "01", id="all on both"),
        pytest.param("120", "012", "012", id="the driver's first, then as the env workers are"),
        pytest.param("11", "111", "01", id="a driver with nothing else on its node"),
        pytest.param("0", "1", "0", id="apart"),
        pytest.param("012", "01", "0", id="simulators without ranks"),
        pytest.param("01", "012", "0", id="ranks without simulators"),
    ],
)
def test_nodes_have_channels_where_each_has_simulators_and_ranks_to_answer_them(env, inference, nodes):
    assert channel_nodes("0", env=list(env), inference=list(inference)) == list(nodes)


@given(st.lists(st.sampled_from("012"), min_size=1), st.lists(st.sampled_from("012"), min_size=1))
def test_every_channel_that_simulators_use_is_that_of_a_rank(env, inference):
    channels = channel_nodes("0", env=env, inference=inference)
    of_ranks = {node if node in channels else "0" for node in inference}
    assert {node if node in channels else "0" for node in env} == of_ranks


def test_where_there_is_one_channel_a_rank_waits_there_without_end():
    order = TakeOrder(channels=1, home=0)
    for batch in (True, False, *[True] * 100):
        assert order.next() == Take(0)
        order.brought(order.next(), batch=batch)


def test_an_unknown_home_is_refused():
    with pytest.raises(ValueError, match="home=2 is none of 2 channels"):
        TakeOrder(channels=2, home=2)


def go(order, *batches):
    """Make as many takes, which bring a batch or not; the channels."""
    channels = []
    for batch in batches:
        take = order.next()
        channels.append(take.channel)
        order.brought(take, batch=batch)
    return channels


def test_a_rank_without_work_looks_at_each_other_channel_in_turn_and_waits_at_home_in_between():
    order = TakeOrder(channels=4, home=1)
    assert go(order, *[False] * 12) == [1, 0, 1, 2, 1, 3] * 2


def test_ranks_of_one_node_begin_at_different_channels():
    first = [go(TakeOrder(channels=4, home=0, first=rank), False, False)[1] for rank in range(6)]
    assert first == [1, 2, 3, 1, 2, 3]


def test_it_stays_with_a_channel_that_does_not_keep_up_and_looks_at_home_before_each_batch():
    order = TakeOrder(channels=3, home=0)
    assert go(order, False, True) == [0, 1]
    for _ in range(5):
        assert order.next() == Take(0, wait_s=0.0)
        assert go(order, False, True) == [0, 1]
    assert go(order, True) == [0]
    assert order.next().wait_s > 0
    assert go(order, False, False, False, False) == [0, 1, 0, 2]


def test_only_requests_are_taken_elsewhere_that_wait_for_longer_than_a_pass():
    order = TakeOrder(channels=2, home=0)
    order.passed(0.8)
    go(order, False)
    assert order.next() == Take(1, wait_s=0.0, waited_s=0.8)
    order.passed(1.6)
    assert order.next() == Take(1, wait_s=0.0, waited_s=pytest.approx(0.9))


@pytest.mark.parametrize("pass_s", [0.0, 0.01, 0.3, 5.0])
def test_looks_in_vain_become_rarer_and_one_that_is_not_begins_anew(pass_s):
    order = TakeOrder(channels=2, home=0)
    order.passed(pass_s)
    shortest = max(pass_s, SHORTEST_PASS_S)
    longest = max(shortest, min(32 * shortest, LONGEST_PATIENCE_S))
    waits = []
    for _ in range(10):
        waits.append(order.next().wait_s)
        go(order, False, False)
    doubled = [min(shortest * 2**number, longest) for number in range(10)]
    assert waits == pytest.approx(doubled)
    go(order, False, True, True)
    assert order.next().wait_s == pytest.approx(shortest)


def test_before_the_first_pass_its_duration_is_assumed():
    assert TakeOrder(channels=2, home=0).next().wait_s == FIRST_PASS_S


def test_a_rank_with_work_at_home_looks_elsewhere_now_and_then_so_that_nobody_waits_for_ever():
    order = TakeOrder(channels=3, home=0)
    batches = [True] * BATCHES_BETWEEN_LOOKS
    assert go(order, *batches, False, *batches, False) == [*([0] * 32), 1, *([0] * 32), 2]


def test_nothing_is_taken_where_an_answer_is_owed_or_the_channel_is_lost():
    order = TakeOrder(channels=3, home=0)
    go(order, False)
    assert order.next({1}).channel == 2
    assert order.next({1, 2}).channel == 0
    order.leave(1)
    assert go(order, False, False, False) == [2, 0, 2]
    order.leave(2)
    assert order.next() == Take(0)


@given(st.integers(1, 5), st.integers(0, 4), st.lists(st.booleans(), max_size=200))
def test_at_home_it_looks_at_every_other_turn_at_least_and_elsewhere_it_never_waits(channels, home, batches):
    order = TakeOrder(channels=channels, home=home % channels, first=home)
    before = None
    for batch in batches:
        take = order.next()
        assert order.home in (take.channel, before or order.home)
        if take.channel != order.home:
            assert take.wait_s == 0.0
            assert take.waited_s >= SHORTEST_PASS_S
        else:
            assert take.waited_s == 0.0
        before = take.channel
        order.brought(take, batch=batch)

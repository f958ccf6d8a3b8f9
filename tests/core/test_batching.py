import math
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.barrier import BarrierBatcher
from rlinf_async.core.batching import DynamicBatcher


@dataclass(frozen=True)
class Request:
    shard: int
    size: int = 1
    lap: tuple[int, int] | None = None


def waiting(*sizes, max_size=4, max_wait=1.0, now=0.0):
    batcher = DynamicBatcher(max_size=max_size, max_wait=max_wait)
    for shard, size in enumerate(sizes):
        batcher.add(Request(shard, size), now)
    return batcher


def shards(batch):
    return [request.shard for request in batch]


def test_a_full_batch_leaves_at_once():
    assert shards(waiting(2, 2).take(now=0.0)) == [0, 1]


def test_a_partial_batch_leaves_when_its_oldest_request_has_waited_long_enough():
    batcher = waiting(1, now=5.0)
    batcher.add(Request(1), now=5.9)
    assert batcher.deadline == 6.0
    assert batcher.take(now=5.99) == []
    assert shards(batcher.take(now=6.0)) == [0, 1]


def test_a_request_that_is_read_late_has_its_place_by_the_time_of_its_arrival():
    batcher = DynamicBatcher(max_size=2, max_wait=1.0)
    for shard, arrived in ((0, 5.0), (1, 4.0), (2, 4.5), (3, 4.0)):
        batcher.add(Request(shard), now=arrived)
    assert batcher.deadline == 5.0
    assert shards(batcher.take(now=4.6)) == [1, 3]
    assert shards(batcher.take(now=4.6)) == [2, 0]


def test_the_wait_starts_anew_with_the_request_that_is_oldest_then():
    batcher = waiting(3, now=0.0)
    batcher.add(Request(1, 3), now=0.5)
    assert shards(batcher.take(now=0.6)) == [0]
    assert batcher.deadline == 1.5
    assert batcher.take(now=1.4) == []
    assert shards(batcher.take(now=1.5)) == [1]


def test_size_is_counted_in_samples_and_not_in_requests():
    batcher = waiting(1, 1, 1, max_size=8)
    assert batcher.take(now=0.0) == []
    batcher.add(Request(3, 5), now=0.0)
    assert shards(batcher.take(now=0.0)) == [0, 1, 2, 3]


def test_a_request_that_does_not_fit_waits_whole_and_holds_its_place():
    batcher = waiting(3, 2, 1)
    assert shards(batcher.take(now=0.0)) == [0]
    assert shards(batcher.take(now=1.0)) == [1, 2]


def test_a_request_larger_than_a_batch_is_refused_with_both_sizes():
    with pytest.raises(ValueError, match=r"5 environments exceeds max_batch_size=4"):
        waiting().add(Request(0, 5), now=0.0)


def test_a_refused_request_leaves_no_trace():
    batcher = waiting(1)
    with pytest.raises(ValueError, match="exceeds"):
        batcher.add(Request(9, 5), now=0.0)
    assert batcher.take(now=0.5) == []
    assert shards(batcher.drain()) == [0]


def test_nothing_waits_for_an_empty_batcher():
    batcher = waiting()
    assert batcher.deadline is None
    assert batcher.take(now=math.inf) == []
    assert batcher.drain() == []


def test_draining_asks_nobody_to_wait_and_still_keeps_to_the_size():
    batcher = waiting(3, 3)
    assert [shards(batcher.drain()), shards(batcher.drain()), batcher.drain()] == [[0], [1], []]


@pytest.mark.parametrize("wrong", [{"max_size": 0}, {"max_size": 1, "max_wait": -0.1}])
def test_a_batcher_refuses_limits_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="must be at least"):
        DynamicBatcher(**wrong)


@settings(deadline=None, max_examples=150)
@given(
    max_size=st.integers(4, 9),
    max_wait=st.sampled_from([0.0, 0.5, 3.0]),
    arrivals=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.25, 1.0])), max_size=40),
    takes=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_every_request_leaves_once_in_order_and_no_later_than_a_take_after_its_wait(
    max_size, max_wait, arrivals, takes
):
    batcher = DynamicBatcher(max_size=max_size, max_wait=max_wait)
    now, left, arrived = 0.0, [], {}
    for shard, ((size, gap), takes_now) in enumerate(zip(arrivals, takes, strict=False)):
        now += gap
        arrived[shard] = (now, size)
        batcher.add(Request(shard, size), now)
        while takes_now and (batch := batcher.take(now)):
            waited = now - arrived[batch[0].shard][0] >= max_wait
            stood = sum(arrived[s][1] for s in arrived if s not in left)
            assert waited or stood >= max_size
            assert sum(request.size for request in batch) <= max_size
            left += shards(batch)
        if takes_now:
            assert all(now - arrived[s][0] < max_wait for s in arrived if s not in left)
            assert sum(arrived[s][1] for s in arrived if s not in left) < max_size
    while batch := batcher.drain():
        left += shards(batch)
    assert left == list(range(len(arrivals)))
    assert len(batcher) == 0


def barrier(*in_flight):
    batcher = BarrierBatcher()
    for shard in in_flight:
        batcher.begin(shard)
    return batcher


def test_a_barrier_waits_for_everybody_in_flight():
    batcher = barrier(0, 1)
    batcher.add(Request(1), now=0.0)
    assert batcher.take(now=1e9) == []
    batcher.add(Request(0), now=1e9)
    assert shards(batcher.take(now=1e9)) == [0, 1]


def test_a_shard_that_ends_its_rollout_frees_those_who_waited_for_it():
    batcher = barrier(0, 1)
    batcher.add(Request(0), now=0.0)
    assert batcher.take(now=0.0) == []
    batcher.end(1)
    assert shards(batcher.take(now=0.0)) == [0]


def test_a_shard_that_starts_late_is_waited_for():
    batcher = barrier(0)
    batcher.add(Request(0), now=0.0)
    batcher.begin(1)
    assert batcher.take(now=0.0) == []


def test_an_empty_barrier_gives_no_batch():
    assert barrier().take(now=0.0) == []
    assert barrier(0).take(now=0.0) == []


def test_a_shard_that_asks_twice_is_an_error():
    batcher = barrier(0, 1)
    batcher.add(Request(0), now=0.0)
    with pytest.raises(ValueError, match="shard 0 asked again"):
        batcher.add(Request(0), now=0.0)


def test_a_shard_that_is_a_lap_ahead_waits_until_no_other_is_in_an_earlier_one():
    batcher = barrier(0, 1, 2)
    for shard, lap in enumerate([(3, 1), (3, 0), (3, 0)]):
        batcher.add(Request(shard, lap=lap), now=0.0)
    assert shards(batcher.take(now=0.0)) == [1, 2]
    batcher.end(2)
    assert batcher.take(now=0.0) == []
    batcher.add(Request(1, lap=(3, 0)), now=0.0)
    assert shards(batcher.take(now=0.0)) == [1]
    batcher.end(1)
    assert shards(batcher.take(now=0.0)) == [0]


@pytest.mark.parametrize("seed", range(40))
def test_expected_shards_are_in_the_same_batches_however_long_their_rollouts_are(seed):
    """Rollouts of any number of decisions, and a gate that lets a lap begin at any time."""
    draw = random.Random(seed)
    lengths = [[draw.randint(1, 4) for _ in range(3)] for _ in range(draw.randint(1, 4))]
    batcher = BarrierBatcher(expected=frozenset(range(len(lengths))))
    left = {
        shard: [(lap, step) for lap in range(3) for step in range(of[lap])]
        for shard, of in enumerate(lengths)
    }
    thinking, batches = list(left), []
    while any(left.values()):
        draw.shuffle(thinking)
        for shard in [thinking.pop() for _ in range(draw.randint(0, len(thinking)))]:
            batcher.begin(shard)
            batcher.add(Request(shard, lap=(0, left[shard][0][0])), now=0.0)
            while batch := shards(batcher.take(now=0.0)):
                batches.append(batch)
                for answered in batch:
                    lap, step = left[answered].pop(0)
                    if step == lengths[answered][lap] - 1:
                        batcher.end(answered)
                thinking += [answered for answered in batch if left[answered]]
    in_order = [
        [shard for shard, of in enumerate(lengths) if of[lap] > step]
        for lap in range(3)
        for step in range(max(of[lap] for of in lengths))
    ]
    assert batches == in_order


def test_a_closing_barrier_waits_for_nobody():
    batcher = barrier(0, 1)
    batcher.add(Request(0), now=0.0)
    assert shards(batcher.drain()) == [0]
    assert batcher.deadline is None


@settings(deadline=None, max_examples=100)
@given(seed=st.randoms(use_true_random=False), count=st.integers(1, 8), room=st.integers(1, 8))
def test_behind_a_gate_of_any_width_a_barrier_always_moves_on(seed, count, room):
    """`count` shards make 3 decisions each; the gate lets `room` of them fly at a time."""
    batcher = BarrierBatcher()
    outside, thinking, asked, decisions = list(range(count)), [], [], Counter()
    while outside or thinking or asked:
        while outside and len(thinking) + len(asked) < room:
            shard = outside.pop(0)
            batcher.begin(shard)
            thinking.append(shard)
        seed.shuffle(thinking)
        for shard in thinking:
            batcher.add(Request(shard), now=0.0)
        asked, thinking = asked + thinking, []
        batch = shards(batcher.take(now=0.0))
        assert batch == sorted(asked)
        asked = []
        for shard in batch:
            decisions[shard] += 1
            if decisions[shard] == 3:
                batcher.end(shard)
            else:
                thinking.append(shard)
    assert decisions == dict.fromkeys(range(count), 3)


def test_shards_that_start_together_are_all_waited_for_before_the_first_has_asked():
    barrier = BarrierBatcher(expected=frozenset({0, 1}))
    barrier.begin(1)
    barrier.add(Request(1, lap=(0, 0)), 0.0)
    assert barrier.take(0.0) == []
    barrier.begin(0)
    barrier.add(Request(0, lap=(0, 0)), 0.0)
    assert [one.shard for one in barrier.take(0.0)] == [0, 1]


def test_what_is_removed_counts_towards_no_batch():
    batcher = waiting(1, max_size=8, now=5.0)
    removed = [Request(0, 3), Request(0, 2)]
    for request in removed:
        batcher.add(request, now=4.0)
    batcher.add(Request(1, 1), now=5.0)
    for request in removed:
        batcher.remove(request)
    batcher.add(Request(4, 5), now=5.0)
    assert batcher.take(now=5.5) == []
    batcher.add(Request(5, 1), now=5.5)
    assert shards(batcher.take(now=5.5)) == [0, 1, 4, 5]


def test_a_barrier_waits_for_the_shard_of_what_is_removed():
    batcher = BarrierBatcher()
    for shard in range(2):
        batcher.begin(shard)
        batcher.add(Request(shard), now=0.0)
    batcher.remove(Request(1))
    assert batcher.take(now=0.0) == []
    batcher.end(1)
    assert shards(batcher.take(now=0.0)) == [0]


def test_where_nobody_says_otherwise_nothing_is_waited_for():
    batcher = DynamicBatcher(max_size=8)
    batcher.add(Request(0), now=3.0)
    assert shards(batcher.take(now=3.0)) == [0]

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.buffer import Ledger, TrajectoryBuffer
from tests.core.simulation import Simulation
from tests.making import piece, plan, ticket


def filled(*pieces, pieces_per_rank=2, max_staleness=1):
    buffer = TrajectoryBuffer(pieces_per_rank=pieces_per_rank, max_staleness=max_staleness)
    for one in pieces:
        assert buffer.put(one) is None
    return buffer


def test_a_piece_at_the_bound_is_kept_and_one_beyond_it_is_refused():
    buffer = filled(max_staleness=2)
    assert buffer.put(piece(ticket(batch=5), oldest=3)) is None
    assert buffer.put(piece(ticket(shard=1, batch=5), oldest=2)) == "stale"


def test_the_oldest_action_decides_and_not_the_newest():
    buffer = filled(max_staleness=1)
    assert buffer.put(piece(ticket(batch=4), oldest=2, newest=4)) == "stale"


def test_the_same_piece_is_refused_while_it_waits_and_after_it_was_taken():
    one = piece(ticket())
    buffer = filled(one)
    assert buffer.put(one) == "duplicate"
    buffer.take(0, 0)
    assert buffer.put(one) == "duplicate"


def test_a_piece_of_a_trained_batch_is_refused():
    buffer = filled(piece(ticket(shard=0)), piece(ticket(shard=1)))
    buffer.take(0, 0)
    buffer.finish(0)
    assert buffer.put(piece(ticket(shard=0))) == "closed"


def test_pieces_are_handed_out_once_and_in_the_order_of_their_arrival():
    late, early = piece(ticket(shard=0)), piece(ticket(shard=1))
    buffer = filled(early, late)
    assert buffer.take(0, 0) == [early, late]
    assert buffer.take(0, 0) == []


def test_a_rank_and_a_batch_see_only_their_own_pieces():
    mine = piece(ticket(batch=1, version=1), rank=1)
    buffer = filled(piece(ticket()), piece(ticket(batch=1, version=1), part=1), mine)
    assert buffer.take(1, 1) == [mine]
    assert (buffer.waiting(0, 0), buffer.waiting(1, 0), buffer.waiting(1, 1)) == (1, 1, 0)


def test_missing_counts_down_with_what_is_taken_and_not_with_what_arrives():
    buffer = filled(piece(ticket(shard=0)))
    assert buffer.missing(0, 0) == 2
    buffer.take(0, 0)
    assert buffer.missing(0, 0) == 1


def test_trained_is_what_a_finished_batch_had_taken():
    first, second = piece(ticket(), size=3, env_steps=12), piece(ticket(batch=1, version=1), size=3)
    buffer = filled(first, second, pieces_per_rank=1)
    buffer.take(0, 0)
    assert buffer.finish(0) == [first]
    assert (buffer.ledger.trained, buffer.ledger.env_steps_trained, buffer.ledger.in_flight) == (3, 12, 3)


def test_the_ledger_says_when_a_trajectory_is_missing():
    ledger = Ledger(produced=10, trained=4, refused=Counter(stale=1))
    ledger.check(5)
    with pytest.raises(RuntimeError, match="4 trajectories are held"):
        ledger.check(4)


def test_the_ledger_reads_as_an_equation():
    ledger = Ledger(produced=10, trained=4, refused=Counter(stale=2, closed=1))
    assert str(ledger) == "produced 10 = trained 4 + in flight 3 + 3 refused (closed 1, stale 2)"


def simulate(*, total=8, workers=2, shards=2, ranks=2, epochs=1, ruined=frozenset(), **options):
    """`ruined` holds (shard, batch) of rollouts that a straggler makes too old, the first time."""
    left = set(ruined)

    def refuses(of):
        if (of.shard, of.batch) in left:
            left.discard((of.shard, of.batch))
            return True
        return False

    layout = plan(
        total_envs=total,
        env_workers=workers,
        shards_per_worker=shards,
        learner_ranks=ranks,
        rollout_epochs=epochs,
    )
    given_times = {"step_time": lambda rng, shard: 1.0, "train_time": lambda rng: 1.0}
    return Simulation(layout, refuses=refuses, **given_times | options).run()


def straggling(rng, shard):
    return rng.expovariate(1.0 / (1 + shard)) * (20.0 if rng.random() < 0.1 else 1.0)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    bound=st.integers(0, 3),
    epochs=st.integers(1, 2),
    workers=st.integers(1, 3),
    shards=st.integers(1, 3),
    ranks=st.sampled_from([1, 2, 3, 4]),
    first=st.sampled_from([0, 7]),
    ruined=st.floats(0, 0.5),
    train_time=st.sampled_from([0.1, 1.0, 10.0]),
    any_place=st.booleans(),
)
def test_runs_with_stragglers_and_refusals_train_every_trajectory_once_within_the_bound(
    seed, bound, epochs, workers, shards, ranks, first, ruined, train_time, any_place
):
    coin = random.Random(seed)
    total = math.lcm(workers * shards, ranks)
    until = first + 6
    run = simulate(
        total=total,
        workers=workers,
        shards=shards,
        ranks=ranks,
        epochs=epochs,
        ruined={(s, b) for s in range(workers * shards) for b in range(until) if coin.random() < ruined},
        max_staleness=bound,
        until=until,
        version=first,
        seed=seed,
        any_place=any_place,
        step_time=straggling,
        train_time=lambda rng: rng.expovariate(1.0 / train_time),
    )
    assert run.version == until
    assert all(version - one.oldest <= bound for version, one in run.trained)
    assert all(one.ticket.batch == version for version, one in run.trained)
    places = Counter((version, *one.key) for version, one in run.trained)
    assert set(places.values()) == {1}
    assert len(places) == 6 * epochs * run.plan.shards * run.plan.parts
    if not any_place:
        assert set(run.shares().values()) == {epochs * run.plan.envs_per_shard}
    assert all(first <= of.batch < until for of in run.started)
    assert run.buffer.held() == 0
    assert run.produced == 6 * run.plan.trajectories_per_batch + run.refused


def one_is_slow(rng, shard):
    return 4.0 if shard == 0 else 1.0


def test_batches_go_at_the_pace_of_the_slowest_shard_and_with_any_place_at_that_of_all_together():
    quick = {"max_staleness": 3, "until": 60, "step_time": one_is_slow, "train_time": lambda rng: 0.1}
    exact, free = simulate(**quick), simulate(**quick, any_place=True)
    assert exact.seconds(10, 60) == 50 * 4.0
    # Four places a batch, by three shards of one a second and one of a quarter: 16 / 13 seconds.
    assert free.seconds(10, 60) == pytest.approx(50 * 16 / 13, rel=0.05)
    counted = free.shares()
    slow = sum(counted[version, 0] for version in range(60))
    assert slow / counted.total() == pytest.approx(1 / 13, rel=0.1)


def test_refusals_cost_their_own_repetition_and_no_throughput_afterwards():
    undisturbed = simulate(max_staleness=1, until=30)
    ruined = {(shard, batch) for shard in range(4) for batch in range(1, 6)}
    disturbed = simulate(max_staleness=1, until=30, ruined=ruined)
    assert disturbed.refused == len(ruined) * 2
    assert disturbed.seconds(10, 30) == undisturbed.seconds(10, 30)


def test_overlapping_rollouts_with_training_is_what_a_bound_above_zero_buys():
    synchronous, overlapped = simulate(max_staleness=0, until=20), simulate(max_staleness=1, until=20)
    assert synchronous.seconds(0, 20) == 20 * 2.0
    assert overlapped.seconds(1, 20) == 19 * 1.0


def test_the_bound_is_reached_where_the_learner_is_slow():
    run = simulate(max_staleness=3, until=12, train_time=lambda rng: 50.0)
    assert max(version - one.oldest for version, one in run.trained) == 3


def test_a_batch_of_a_resumed_run_is_as_old_as_its_version_and_no_older():
    run = simulate(max_staleness=2, until=12, version=9)
    assert {version for version, _ in run.trained} == {9, 10, 11}
    assert min(one.oldest for _, one in run.trained) == 9


def test_a_batch_is_complete_when_each_of_its_pieces_has_come_whoever_has_taken_it():
    buffer = TrajectoryBuffer(pieces_per_rank=1, max_staleness=1)
    found = [buffer.complete(0, ranks=2)]
    for rank in range(2):
        buffer.put(piece(ticket(), part=rank, rank=rank))
        found.append(buffer.complete(0, ranks=2))
        buffer.take(0, rank)
        found.append(buffer.complete(0, ranks=2))
    buffer.finish(0)
    assert [*found, buffer.complete(0, ranks=2), buffer.complete(1, ranks=2)] == [
        False, False, False, True, True, True, False,
    ]  # fmt: skip


def test_a_resumed_buffer_holds_what_can_still_be_trained_and_counts_the_rest_as_lost():
    fresh, stale = piece(ticket(batch=3), oldest=2), piece(ticket(batch=3, shard=1), oldest=1)
    trained_already = piece(ticket(batch=2), oldest=2)
    books = Ledger(produced=20, trained=20 - 5 * fresh.size)  # one of the five could not be read
    buffer = TrajectoryBuffer(pieces_per_rank=2, max_staleness=1)
    assert buffer.restore(3, books, [fresh, stale, trained_already]) == [fresh]
    assert buffer.ledger.refused == {"lost at resume": 4 * fresh.size}
    buffer.ledger.check(buffer.held())
    assert buffer.untrained() == [fresh]
    assert buffer.put(fresh) == "duplicate"
    assert buffer.take(3, 0) == [fresh]
    assert buffer.untrained() == [fresh]


def test_whoever_calls_a_batch_trained_too_early_is_told_how_many_of_its_pieces_were_not_taken():
    buffer = filled(piece(ticket(shard=0)), piece(ticket(shard=1)), pieces_per_rank=4)
    buffer.take(0, 0)
    buffer.put(piece(ticket(shard=2)))
    with pytest.raises(RuntimeError, match="3 of its pieces"):  # two are missing, and one waits
        buffer.finish(0)


def test_what_is_untrained_comes_in_the_order_of_batches_and_places_whoever_has_it():
    taken = [piece(ticket(shard=shard, batch=batch)) for batch, shard in ((1, 1), (0, 1))]
    late = [piece(ticket(shard=shard, batch=batch)) for batch, shard in ((1, 0), (0, 0))]
    buffer = filled(*taken)
    buffer.take(1, 0)
    buffer.take(0, 0)
    for one in late:
        buffer.put(one)
    assert buffer.untrained() == [late[1], taken[1], late[0], taken[0]]


def test_what_is_lost_at_every_resume_adds_up():
    ledger = Ledger(produced=10, trained=4, refused=Counter({"lost at resume": 3}))
    TrajectoryBuffer(pieces_per_rank=1, max_staleness=1).restore(4, ledger)
    assert ledger.refused == {"lost at resume": 6}

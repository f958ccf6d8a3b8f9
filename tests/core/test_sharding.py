import math
import re
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.sharding import SEPARATE_SIMULATORS, VECTORISED_SIMULATORS, ShardPlan, nearest_divisor
from rlinf_async.hosts.simulators import choose_shards
from tests.making import plan

SIZES = {
    "total_envs": st.integers(1, 48),
    "env_workers": st.integers(1, 4),
    "inference_ranks": st.integers(1, 4),
    "learner_ranks": st.integers(1, 4),
    "shards_per_worker": st.integers(1, 4),
    "rollout_epochs": st.integers(1, 3),
    "group_size": st.sampled_from([1, 1, 2, 4]),
}


def fits(sizes):
    """Whether sizes divide, written without a ShardPlan."""
    shards, ranks = sizes["env_workers"] * sizes["shards_per_worker"], sizes["learner_ranks"]
    whole = sizes["total_envs"] % shards == 0 and sizes["total_envs"] % ranks == 0
    groups = [sizes["total_envs"] // shards, sizes["total_envs"] // ranks]
    return whole and not any(size % sizes["group_size"] for size in groups)


@st.composite
def fitting_plans(draw):
    """Plans of sizes that divide."""
    sizes = draw(st.fixed_dictionaries(SIZES))
    shards = sizes["env_workers"] * sizes["shards_per_worker"]
    unit = sizes["group_size"] * math.lcm(shards, sizes["learner_ranks"])
    sizes["total_envs"] = unit * draw(st.integers(1, 4))
    return ShardPlan(**sizes)


def advice(error, sizes):
    """The sizes that an error message proposes."""
    shards = re.search(r"nearest number of shards per worker that does: (\d+)$", str(error))
    total = re.search(r"nearest total that does: (\d+)$", str(error))
    assert shards or total, error
    return (
        {**sizes, "shards_per_worker": int(shards[1])} if shards else {**sizes, "total_envs": int(total[1])}
    )


@settings(deadline=None, max_examples=300)
@given(st.fixed_dictionaries(SIZES))
def test_a_plan_accepts_exactly_the_sizes_that_divide_and_advises_the_nearest_otherwise(sizes):
    if fits(sizes):
        ShardPlan(**sizes)
        return
    with pytest.raises(ValueError, match="nearest") as caught:
        ShardPlan(**sizes)
    proposed = advice(caught.value, sizes)
    assert proposed != sizes
    assert fits(proposed)
    (key,) = (key for key in sizes if proposed[key] != sizes[key])
    distance = abs(proposed[key] - sizes[key])
    nearer = range(max(1, sizes[key] - distance + 1), sizes[key] + distance)
    assert not any(fits({**sizes, key: value}) for value in nearer)


@settings(deadline=None, max_examples=200)
@given(fitting_plans())
def test_pieces_give_every_rank_equally_many_whole_groups_of_one_size(made):
    owner = {}
    for shard, part in product(range(made.shards), range(made.parts)):
        for env in range(made.piece_size):
            owner[shard * made.envs_per_shard + part * made.piece_size + env] = made.learner_rank(shard, part)
    assert sorted(owner) == list(range(made.total_envs))
    share = made.total_envs // made.learner_ranks
    assert Counter(owner.values()) == dict.fromkeys(range(made.learner_ranks), share)
    assert made.piece_size % made.group_size == 0
    for group in range(made.total_envs // made.group_size):
        members = range(group * made.group_size, (group + 1) * made.group_size)
        assert len({owner[env] for env in members}) == 1
    pieces = Counter(made.learner_rank(s, p) for s, p in product(range(made.shards), range(made.parts)))
    assert {count * made.rollout_epochs for count in pieces.values()} == {made.pieces_per_rank}
    assert made.trajectories_per_batch == made.pieces_per_rank * made.piece_size * made.learner_ranks


@settings(deadline=None, max_examples=100)
@given(fitting_plans())
def test_the_shards_of_the_workers_are_all_shards_in_order(made):
    listed = [shard for worker in range(made.env_workers) for shard in made.shards_of_worker(worker)]
    assert listed == list(range(made.shards))


@settings(deadline=None, max_examples=100)
@given(fitting_plans(), st.data())
def test_queues_use_every_inference_rank_almost_equally(made, data):
    made = replace(made, inference_ranks=data.draw(st.integers(1, made.shards)))
    load = Counter(made.queue(shard)[0] for shard in range(made.shards))
    assert set(load) == set(range(made.inference_ranks))
    assert max(load.values()) - min(load.values()) <= 1


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (
            {"total_envs": 8, "env_workers": 3, "shards_per_worker": 1},
            "8 environments do not divide into 3 env",
        ),
        (
            {"total_envs": 8, "learner_ranks": 3, "shards_per_worker": 1},
            "8 environments do not divide among 3 learner ranks",
        ),
        (
            {"total_envs": 8, "group_size": 8},
            "8 environments in groups of 8 do not divide into 1 env workers x 2 shards; .* does: 1",
        ),
        (
            {"total_envs": 8, "group_size": 8, "learner_ranks": 2, "shards_per_worker": 1},
            "8 environments in groups of 8 do not divide among 2 learner ranks; nearest total that does: 16",
        ),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_the_reason(sizes, reason):
    with pytest.raises(ValueError, match=reason):
        plan(**sizes)


@pytest.mark.parametrize(
    ("total", "shards", "nearest"), [(12, 5, 4), (12, 9, 6), (4, 5, 4), (4, 3, 2), (5, 3, 1)]
)
def test_shards_are_advised_where_some_number_of_them_divides_the_environments(total, shards, nearest):
    with pytest.raises(ValueError, match=f"nearest number of shards per worker that does: {nearest}$"):
        plan(total_envs=total, shards_per_worker=shards)


@pytest.mark.parametrize(
    "name",
    [
        "total_envs",
        "env_workers",
        "inference_ranks",
        "learner_ranks",
        "shards_per_worker",
        "rollout_epochs",
        "group_size",
    ],
)
def test_a_size_below_one_is_named(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        plan(**{name: 0})


def chosen(**changes):
    few = {"splitting": "apart", "simulator": "libero", "stages": 1, "asked": None, "most": 8}
    few["fits"] = lambda shards: 8 % shards == 0
    return choose_shards(**{**few, **changes})


def test_auto_lets_no_simulator_wait_for_another_where_each_has_a_process():
    assert chosen() == 8
    assert not SEPARATE_SIMULATORS & VECTORISED_SIMULATORS


def test_auto_stays_within_what_fits_and_what_one_worker_can_look_after():
    assert chosen(fits=lambda shards: shards in (1, 2, 4)) == 4
    assert chosen(most=1000, fits=lambda shards: 1000 % shards == 0) == 50
    assert chosen(fits=lambda shards: shards == 1) == 1


def test_auto_gives_simulators_in_one_process_two_shards_so_that_one_steps_while_one_is_answered():
    assert chosen(splitting="together") == 2


@pytest.mark.parametrize("splitting", ["vectorised", "unknown"])
def test_auto_splits_neither_a_vectorised_simulator_nor_one_that_nobody_has_looked_at(splitting):
    assert chosen(splitting=splitting) == 1


def test_the_pipeline_stages_that_a_user_has_set_are_kept():
    assert chosen(stages=4) == 4
    assert chosen(splitting="vectorised", stages=2) == 2


def test_asking_to_split_a_vectorised_simulator_is_refused_with_what_is_valid():
    with pytest.raises(ValueError, match=r"shards=4 would split maniskill.*auto or 1"):
        chosen(simulator="maniskill", splitting="vectorised", asked=4)
    assert chosen(simulator="maniskill", splitting="vectorised", asked=1) == 1


def test_a_number_asked_for_is_what_is_used():
    assert chosen(asked=5) == 5
    assert chosen(splitting="unknown", asked=4) == 4


@settings(deadline=None, max_examples=200)
@given(
    multiple=st.integers(1, 8),
    workers=st.integers(1, 4),
    group=st.sampled_from([1, 2, 4]),
    ranks=st.integers(1, 3),
)
def test_auto_never_makes_a_plan_impossible_that_one_shard_makes_possible(multiple, workers, group, ranks):
    total = multiple * group * math.lcm(workers, ranks)
    one_each = plan(
        total_envs=total, env_workers=workers, learner_ranks=ranks, group_size=group, shards_per_worker=1
    )
    shards = chosen(fits=one_each.fits, most=one_each.envs_per_shard // group)
    assert replace(one_each, shards_per_worker=shards).envs_per_shard % group == 0


def test_rollouts_are_numbered_batch_by_batch_and_epoch_by_epoch():
    made = plan(rollout_epochs=3)
    numbers = [made.rollout_number(batch, epoch) for batch in range(2) for epoch in range(3)]
    assert numbers == [0, 1, 2, 3, 4, 5]


@given(number=st.integers(1, 60), target=st.floats(0, 70))
def test_the_nearest_divisor_divides_and_none_is_nearer(number, target):
    found = nearest_divisor(number, target)
    divisors = [n for n in range(1, number + 1) if not number % n]
    assert found in divisors
    assert all(abs(found - target) <= abs(other - target) for other in divisors)


def test_joined_shards_have_the_pieces_that_the_single_ones_had_on_the_same_ranks():
    single = plan(total_envs=32, learner_ranks=2, shards_per_worker=16)
    joined = single.joined(4)
    assert joined.envs_per_shard == 8
    assert joined.pieces_per_rank == single.pieces_per_rank
    ranks = [
        joined.learner_rank(place, part) for place in range(joined.shards) for part in range(joined.parts)
    ]
    assert ranks == [single.learner_rank(place, 0) for place in range(single.shards)]
    assert joined.joined(2).piece_size == single.piece_size


def test_shards_are_joined_to_a_divisor_of_their_number_and_pieces_divide_them():
    with pytest.raises(ValueError, match="cannot be joined to 3"):
        plan(total_envs=32, shards_per_worker=16).joined(3)
    with pytest.raises(ValueError, match="kept_piece=3 must divide"):
        plan(total_envs=32, shards_per_worker=16, kept_piece=3)

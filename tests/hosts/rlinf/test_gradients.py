"""Our learner's gradients and weights against those of RLinf's own actor, on identical trajectories."""

import numpy as np
import pytest
import torch

from tests.hosts.rlinf.conftest import by_ranks, trained
from tests.hosts.rlinf.synthetic import Case, fields

GRADIENT = 1e-5
"""Largest norm of the difference of two gradients, relative to the gradient: sums in another order."""
WEIGHTS = 1e-4
"""The same for the way that the weights went; Adam divides by small numbers, which magnifies rounding."""
RUNNING = "async.advanced.normalization=running"
GROUPS = "algorithm.group_size=4"
STREAMER = "async.mode=streamer"
STEPS = "actor.global_batch_size=64"
"""Three optimizer steps in each pass over a batch, instead of one."""


def epochs(number):
    return f"algorithm.update_epoch={number}"


def case(name, *overrides, **more):
    """Of GRPO where groups are compared."""
    algorithm = "grpo" if GROUPS in overrides else "ppo"
    return Case(name=name, algorithm=algorithm, overrides=overrides, **more)


ROLLOUT = [
    case(
        f"rollout {algorithm} {number}",
        *("async.mode=rollout", STEPS, epochs(number), *more),
        order=number,
        rewards=rewards,
        batches=2 if number == 1 else 1,
    )
    for algorithm, rewards, more in (("ppo", "dense", ()), ("grpo", "sparse", (GROUPS,)))
    for number in (1, 2)
]
ARRIVALS = [(None, 1, "auto"), (1, 1, 8), (2, 3, 32), (3, 8, 96)]
"""Seed of the order of arrival, pieces handed over at a time, samples in a micro-batch."""
GRPO = [
    case(
        f"streamer grpo {number} {(order, together, size)}",
        *(*levels, GROUPS, epochs(number), f"async.streamer.micro_batch_size={size}"),
        order=order,
        together=together,
        rewards="sparse" if number == 1 else "dense",
    )
    for number, levels, arrivals in (
        (1, (STREAMER,), ARRIVALS),
        (2, ("async.mode=rollout", "async.streamer.enabled=true"), ARRIVALS[2:]),
    )
    for order, together, size in arrivals
]
FILTER = (
    "algorithm.filter_rewards=true",
    "++algorithm.rewards_lower_bound=0.1",
    "++algorithm.rewards_upper_bound=0.6",
)
BEFORE, IN_ORDER = {"others": ("by the batch before",)}, {"others": ("in our order",)}
ON_POLICY = {"on_policy": True, "batches": 2}
DEFERRED = "async.advanced.normalization=deferred"
OTHERS = [
    case("filtered", STREAMER, GROUPS, epochs(2), *FILTER, order=4, rewards="sparse", batches=2),
    case("sensitive", STREAMER, GROUPS, epochs(1), order=5, others=("wrong denominator",)),
    case("deferred", STREAMER, DEFERRED, STEPS, epochs(2), order=6),
    case("running", STREAMER, RUNNING, epochs(2), order=7, batches=2, **BEFORE),
    case("running in steps", STREAMER, STEPS, epochs(1), order=16, batches=3, **BEFORE),
    case("unmasked", STREAMER, RUNNING, "env.train.ignore_terminations=true", epochs(2), order=8),
    case("spread over steps", STREAMER, GROUPS, STEPS, epochs(1), order=9, **IN_ORDER),
    case("several steps of ppo", STREAMER, STEPS, epochs(1), order=10),
    case("lag 0", "async.mode=train", STEPS, epochs(2), order=11, **ON_POLICY),
    case("lag 0 streamed", "async.mode=full", GROUPS, epochs(2), order=12, **ON_POLICY),
]
WITHOUT_LAG = [
    case(f"lag 0 {change}", "async.mode=train", f"async.{change}", STEPS, epochs(2), order=13, **ON_POLICY)
    for change in ("train.correction=tis", "advanced.proximal=loglinear")
]
IN_STEPS = case(
    *("lag 0 streamed in steps", "async.mode=full", GROUPS, STEPS, epochs(1)),
    order=14,
    on_policy=True,
    **IN_ORDER,
)
HOSTS = [
    case(
        f"hosts {algorithm} {' '.join(changes)}",
        *("async.mode=train", "async.advanced.accept_bias=true", epochs(2)),
        *(f"async.{change}" for change in changes),
        *((GROUPS,) if algorithm == "grpo" else ()),
        lag=1,
        batches=2,
        others=("local",),
    )
    for algorithm, changes in (
        ("ppo", ()),
        ("ppo", ("train.correction=none",)),
        ("ppo", ("train.correction=tis", "advanced.max_weight=1.1")),
        ("ppo", ("advanced.proximal=loglinear",)),
        ("grpo", ()),
        ("grpo", ("train.correction=tis", "advanced.max_weight=1.1")),
    )
]
WARM_UP = case(
    *("critic warm-up", "async.mode=train", STEPS, epochs(2), "actor.optim.critic_warmup_steps=8"),
    order=15,
    on_policy=True,
    batches=3,
)
"""The critic alone is trained in the first eight of 18 optimizer steps: until the second batch."""
CASES = [*ROLLOUT, *GRPO, *OTHERS, *WITHOUT_LAG, IN_STEPS, WARM_UP]
BY_ONE = [*ROLLOUT[::2], *GRPO[1::2]]
"""What one learner rank trains as well, where no sum is over ranks."""


@pytest.fixture(scope="module")
def by_one():
    return trained(1, [*BY_ONE, *HOSTS])


@pytest.fixture(scope="module")
def runs():
    """Every case, trained by learners of two ranks."""
    return trained(2, CASES)


def names(cases):
    return pytest.mark.parametrize("name", [case.name for case in cases])


def deviation(found, expected):
    return float((found - expected).norm() / expected.norm())


def same_to_rounding(found, expected):
    """Gradients before clipping, step by step, and the weights after all of them."""
    assert len(found.gradients) == len(expected.gradients)
    assert torch.equal(found.start, expected.start)
    for ours, theirs in zip(found.gradients, expected.gradients, strict=True):
        assert deviation(ours, theirs) < GRADIENT
    assert deviation(found.weights - found.start, expected.weights - expected.start) < WEIGHTS


def same_bits(found, expected):
    assert len(found.gradients) == len(expected.gradients)
    assert torch.equal(found.start, expected.start)
    assert all(map(torch.equal, found.gradients, expected.gradients))
    assert torch.equal(found.weights, expected.weights)


def same_report(found, expected, *prefixes):
    """Metrics whose names begin so, but for the rounding of sums in another order."""
    for ours, theirs in zip(found.metrics, expected.metrics, strict=True):
        wanted = {name: value for name, value in theirs.items() if name.startswith(prefixes)}
        assert wanted
        assert {name: ours[name] for name in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@by_ranks(ROLLOUT, BY_ONE)
def test_level_2_alone_computes_rlinfs_own_bits_whatever_arrived_first(run):
    assert len(run["stock"].gradients) == 2 * 3
    same_bits(run["ours"], run["stock"])
    counted = [dict(metrics) for metrics in run["ours"].metrics]
    silent = [metrics.pop("train/groups_without_signal", None) for metrics in counted]
    if "grpo" in run["name"]:
        assert silent == [silent_groups(run["settings"], seed) for seed in range(len(counted))]
        assert any(silent)
    assert counted == run["stock"].metrics
    assert run["exactness"]["rollout"].startswith("exact")


def silent_groups(settings, seed):
    """Groups of four neighbours of which all succeeded, or none did."""
    rewards = fields(settings.plan, settings.horizon, rewards="sparse", seed=seed)["rewards"].numpy()
    successes = rewards.sum(axis=(1, 3)).reshape(-1, 4).sum(axis=1)
    return np.isin(successes, (0, 4)).sum()


@by_ranks(GRPO, BY_ONE)
def test_streamed_grpo_is_rlinfs_to_rounding_in_any_order_and_any_micro_batches(run):
    same_to_rounding(run["ours"], run["stock"])
    same_report(run["ours"], run["stock"], "rollout/", "train/actor/grad_norm", "train/actor/policy_loss")
    assert run["exactness"]["streamer"].startswith("exact")


@by_ranks(GRPO, BY_ONE)
def test_each_pass_of_a_streamed_batch_trains_every_sample_once(run):
    for ours, theirs in zip(run["ours"].numbers, run["stock"].numbers, strict=True):
        expected = torch.cat(theirs).reshape(run["settings"].update_epoch, -1).sort().values
        assert torch.equal(torch.cat(ours).reshape(expected.shape).sort().values, expected)
        assert len(expected[0].unique()) == len(expected[0]) == 192 / len(run["stock"].numbers)


def test_streamed_grpo_that_filters_groups_is_rlinfs_to_rounding(runs):
    run, unfiltered = runs["filtered"], runs[GRPO[0].name]
    same_to_rounding(run["ours"], run["stock"])
    assert run["exactness"]["streamer"].startswith("exact")
    for kept, all_valid in zip(run["stock"].valid, unfiltered["stock"].valid, strict=True):
        assert 0 < sum(kept[: len(all_valid)]) < sum(all_valid)


def test_streamed_ppo_with_deferred_normalization_computes_rlinfs_own_bits(runs):
    # Advantages need the whole batch, so nothing is trained before it is complete: RLinf's own training.
    run = runs["deferred"]
    same_bits(run["ours"], run["stock"])
    assert run["exactness"]["streamer"].startswith("exact")


def test_the_first_batch_of_streamed_ppo_is_normalised_by_itself_and_is_rlinfs(runs):
    run, steps = runs["running"], 2
    for ours, theirs in zip(run["ours"].gradients[:steps], run["stock"].gradients[:steps], strict=True):
        assert deviation(ours, theirs) < GRADIENT


def test_without_a_mask_the_first_batch_of_streamed_ppo_is_rlinfs_too(runs):
    run = runs["unmasked"]
    assert not any(run["stock"].valid)
    same_to_rounding(run["ours"], run["stock"])


@pytest.mark.parametrize(("name", "first"), [("running", 2), ("running in steps", 3)])
def test_the_first_step_of_a_streamed_batch_of_ppo_is_normalised_by_the_batch_before_and_no_other(
    runs, name, first
):
    run = runs[name]
    same_to_rounding(run["ours"], run["by the batch before"])
    assert deviation(run["ours"].gradients[first], run["stock"].gradients[first]) > 1000 * GRADIENT
    same_report(run["ours"], run["stock"], "rollout/")
    claim = run["exactness"]["streamer"]
    assert claim.startswith("approximate")
    assert "first optimizer step of a batch normalises advantages by the batch before" in claim


def test_the_first_batch_of_streamed_ppo_is_kept_and_cut_into_steps_as_rlinf_cuts_it(runs):
    run = runs["several steps of ppo"]
    assert len(run["ours"].gradients) == 3
    same_to_rounding(run["ours"], run["stock"])


def test_steps_that_pieces_are_spread_over_are_those_of_rlinf_given_who_is_in_which(runs):
    run = runs["spread over steps"]
    assert len(run["ours"].gradients) == 3
    same_to_rounding(run["ours"], run["in our order"])
    assert run["exactness"]["streamer"].startswith("exact (every optimizer step has an equal share")


@pytest.mark.parametrize("name", ["lag 0", "lag 0 streamed", *(case.name for case in WITHOUT_LAG)])
def test_off_policy_training_without_any_lag_is_rlinfs_to_rounding(runs, name):
    # The anchor is recomputed in batches of another size, so its last bits may differ from the behaviour's.
    run = runs[name]
    same_to_rounding(run["ours"], run["stock"])
    assert all(report["train/actor/behaviour_weight"] == pytest.approx(1) for report in run["ours"].metrics)
    assert run["exactness"]["train"].startswith("approximate")


def test_off_policy_training_goes_through_the_warm_up_of_the_critic_as_rlinf_does(runs):
    run = runs[WARM_UP.name]
    assert len(run["ours"].gradients) == 3 * 3 * 2
    same_to_rounding(run["ours"], run["stock"])
    # What inference gets of the actor stands still at first; then every weight moves.
    start, *later = run["ours"].published
    moved = [{name for name in start if not torch.equal(start[name], after[name])} for after in later]
    assert moved[0] == moved[1] == set(start)


def test_pieces_that_are_spread_over_steps_are_anchored_at_the_policy_before_the_first(runs):
    run = runs[IN_STEPS.name]
    assert len(run["ours"].gradients) == 3
    same_to_rounding(run["ours"], run["in our order"])


@names(HOSTS)
def test_both_hosts_train_off_policy_batches_alike(by_one, name):
    run = by_one[name]
    found, expected = run["ours"].weights - run["ours"].start, run["local"].weights - run["local"].start
    assert torch.equal(run["ours"].start, run["local"].start)
    assert deviation(found, expected) < WEIGHTS
    # Stock RLinf takes the sampler for the anchor: only without a correction that is the same.
    stock = deviation(run["stock"].weights - run["stock"].start, expected)
    assert (stock < WEIGHTS) == ("correction=none" in name)


def test_these_tests_would_notice_a_wrong_denominator(runs):
    run = runs["sensitive"]
    same_to_rounding(run["ours"], run["stock"])
    right, wrong = run["stock"].gradients[0], run["wrong denominator"].gradients[0]
    assert deviation(wrong, right) > 1000 * GRADIENT
    # Unequal counts turn the gradient, too: no common factor would mend it.
    assert deviation(wrong / wrong.norm(), right / right.norm()) > 1000 * GRADIENT


@by_ranks([*ROLLOUT, *GRPO], BY_ONE)
def test_the_comparison_has_something_to_compare(run):
    assert all(gradient.norm() > 0.1 for gradient in run["stock"].gradients)
    assert (run["stock"].weights - run["stock"].start).norm() > 1e-3
    assert 0.02 < run["stock"].metrics[0]["train/actor/clip_fraction"] < 0.5
    # Episodes end early, so micro-batches of one size, and ranks, have different numbers of valid samples.
    assert all(len(set(valid)) > 2 for valid in run["stock"].valid)
    assert len({sum(valid) for valid in run["stock"].valid}) == len(run["stock"].valid)

"""Gradients and weights of training that leaves samples without a gradient out, against RLinf's own actor."""

import pytest
import torch

from tests.hosts.rlinf.conftest import by_ranks, trained
from tests.hosts.rlinf.test_gradients import (
    DEFERRED,
    FILTER,
    GROUPS,
    IN_ORDER,
    ON_POLICY,
    STEPS,
    WEIGHTS,
    case,
    deviation,
    epochs,
    same_report,
)

GRADIENT = 1e-6
"""Largest norm of the difference of two gradients, relative to the gradient."""
LEAN = "async.mode=lean"
MASKED = "async.skip.masked=true"
STREAMED = ("async.mode=streamer", MASKED)
UNMASKED = "env.train.ignore_terminations=true"
NONE_LEFT = (
    "algorithm.filter_rewards=true",
    "++algorithm.rewards_lower_bound=100",
    "++algorithm.rewards_upper_bound=200",
    "++actor.optim.weight_decay=0.1",
)
"""No group is kept, and the weights move all the same."""
BONUS = ("algorithm.entropy_bonus=0.01", "algorithm.entropy_type=action_level")
WARM_UP = "actor.optim.critic_warmup_steps=4"


def levels(logprobs, rewards):
    return f"algorithm.logprob_type={logprobs}_level", f"algorithm.reward_type={rewards}_level"


SPARSE = {"rewards": "sparse"}
FSDP1 = {
    "fsdp1": (
        "++actor.fsdp_config.strategy=fsdp",
        "++actor.fsdp_config.sharding_strategy=full_shard",
        "++actor.fsdp_config.use_orig_params=true",
    )
}
"""All other cases are of FSDP2."""
CASES = [
    case("ppo", LEAN, STEPS, epochs(2)),
    case("ppo of chunks", LEAN, STEPS, epochs(1), *levels("chunk", "chunk")),
    case("ppo of tokens", LEAN, STEPS, epochs(1), *levels("token", "chunk")),
    case("ppo with a bonus", LEAN, STEPS, epochs(1), *BONUS),
    case("ppo in a warm-up", LEAN, STEPS, epochs(2), WARM_UP),
    case("ppo deferred", *STREAMED, DEFERRED, STEPS, epochs(2), order=2),
    case("grpo", LEAN, STEPS, GROUPS, epochs(2), **SPARSE),
    case("grpo of chunks", LEAN, GROUPS, epochs(1), *levels("chunk", "chunk"), **SPARSE),
    case("grpo of tokens", LEAN, GROUPS, epochs(1), *levels("token", "action"), **SPARSE),
    case("grpo with a bonus", LEAN, GROUPS, STEPS, epochs(1), *BONUS, **SPARSE),
    case("filtered", LEAN, GROUPS, epochs(1), *FILTER, **SPARSE),
    case("filtered without masks", LEAN, GROUPS, epochs(1), *FILTER, UNMASKED, **SPARSE),
    case("none left", LEAN, GROUPS, STEPS, epochs(2), *NONE_LEFT, batches=2, **SPARSE),
    case("streamed grpo", *STREAMED, GROUPS, epochs(1), order=3, **SPARSE),
    case("streamed grpo in small micro-batches", *STREAMED, GROUPS, epochs(2), order=1, **SPARSE),
    case("streamed and filtered", *STREAMED, GROUPS, epochs(1), *FILTER, order=4, **SPARSE),
    case("streamed grpo of chunks", *STREAMED, GROUPS, epochs(1), *levels("chunk", "chunk"), **SPARSE),
    case("ppo deferred of chunks", *STREAMED, DEFERRED, epochs(2), *levels("chunk", "chunk"), order=5),
    *(
        case(f"{name} by {strategy}", *keys, *overrides, epochs(1), **more)
        for strategy, keys in FSDP1.items()
        for name, overrides, more in (
            ("ppo", (LEAN, STEPS), {}),
            ("ppo deferred", (*STREAMED, DEFERRED, STEPS), {"order": 2}),
            ("grpo", (LEAN, STEPS, GROUPS), SPARSE),
            ("streamed grpo", (*STREAMED, GROUPS), {"order": 3, **SPARSE}),
        )
    ),
]
IN_STEPS = [
    case("streamed grpo in steps", *STREAMED, GROUPS, STEPS, epochs(1), order=9, **SPARSE, **IN_ORDER),
]
UNMEASURED = "async.advanced.measure_ratios=false"
"""Samples are scored for anchors and values alone."""
ANCHORED = [
    case("lag 0 ppo", "async.mode=train", MASKED, UNMEASURED, STEPS, epochs(2), order=11, **ON_POLICY),
    case("lag 0 grpo", "async.mode=full", UNMEASURED, GROUPS, epochs(2), order=12, **ON_POLICY, **SPARSE),
]


BY_ONE = [
    case for case in CASES if case.name in ("ppo", "grpo", "none left", "streamed grpo", "ppo by fsdp1")
]
"""What one learner rank trains as well, which shares its samples with nobody."""


@pytest.fixture(scope="module")
def by_one():
    return trained(1, BY_ONE)


@pytest.fixture(scope="module")
def runs():
    """Every case, trained by learners of two ranks."""
    return trained(2, [*CASES, *IN_STEPS, *ANCHORED])


def rows(training, *, gradients=True):
    """[rank]: the rows in passes with gradients, or without."""
    return [sum(size for grads, size in own if grads == gradients) for own in training.computed]


def passes(training):
    return [sum(grads for grads, _ in own) for own in training.computed]


@by_ranks(CASES, BY_ONE)
def test_gradients_and_weights_are_rlinfs_to_rounding(run):
    silent = "grpo" in run["name"] and "bonus" not in run["name"]
    check(run["ours"], run["stock"], silent=silent)


def test_steps_that_pieces_are_spread_over_are_rlinfs_given_who_is_in_which(runs):
    run = runs[IN_STEPS[0].name]
    check(run["ours"], run["in our order"], silent=True)


def check(ours, stock, *, silent):
    assert torch.equal(ours.start, stock.start)
    assert len(ours.gradients) == len(stock.gradients)
    for found, expected in zip(ours.gradients, stock.gradients, strict=True):
        assert (found - expected).norm() <= GRADIENT * expected.norm()
    assert deviation(ours.weights - ours.start, stock.weights - stock.start) < WEIGHTS
    # Only live rows, but for one in each pass of a rank that has none of its own for it.
    live, spare = sum(map(sum, stock.valid)), sum(passes(ours))
    assert sum(rows(ours)) <= (0.8 * live if silent else live + spare) < sum(rows(stock))
    # Sharded models need as many passes on every rank: as many as the rank with most live rows needs.
    assert len(set(passes(ours))) == 1
    assert passes(ours)[0] <= passes(stock)[0]


@pytest.mark.parametrize("name", ["ppo", "ppo deferred", "ppo in a warm-up", "filtered"])
def test_every_metric_of_masked_batches_is_rlinfs(runs, name):
    # RLinf's share of clipped values is one of all samples, of masked ones too.
    for found, expected in zip(runs[name]["ours"].metrics, runs[name]["stock"].metrics, strict=True):
        wanted = {key: value for key, value in expected.items() if key != "train/critic/value_clip_ratio"}
        assert wanted.keys() >= {"train/actor/approx_kl", "train/actor/total_loss", "rollout/advantages_mean"}
        told = {key: found[key] for key in wanted}
        assert told == pytest.approx(wanted, rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(("name", "more"), [("grpo", ["train/actor/clip_fraction"]), ("streamed grpo", [])])
def test_metrics_of_batches_with_silent_groups_are_rlinfs_where_no_ratio_is_told(runs, name, more):
    same_report(
        runs[name]["ours"],
        runs[name]["stock"],
        *("rollout/", "train/actor/policy_loss", "train/actor/grad_norm", *more),
    )


@by_ranks(CASES, BY_ONE)
def test_the_share_that_was_left_out_is_told(run):
    total = run["settings"].samples_per_batch * run["settings"].update_epoch * len(run["ours"].metrics)
    spares = sum(passes(run["ours"]))
    told = sum(metrics["async/skipped/samples"] for metrics in run["ours"].metrics) / len(run["ours"].metrics)
    trained = round((1 - told) * total)
    assert trained <= sum(rows(run["ours"])) <= trained + spares
    assert (told == 1) == (run["name"] == "none left")


def test_an_optimizer_step_without_a_live_sample_moves_the_weights_as_rlinfs(runs):
    run = runs["none left"]
    assert len(run["ours"].gradients) == 2 * 2 * 3
    assert not any(gradient.any() for gradient in run["ours"].gradients)
    assert (run["ours"].weights - run["ours"].start).norm() > 1e-3
    assert set(passes(run["ours"])) == {12}
    assert set(rows(run["ours"])) == {12}


@pytest.mark.parametrize("name", ["ppo", "ppo of chunks", "grpo"])
def test_ranks_compute_equally_many_rows_of_an_optimizer_step_whichever_has_more(runs, name):
    live = [sum(own) for own in runs[name]["stock"].valid]
    assert max(live) > 1.05 * min(live)
    one, other = rows(runs[name]["ours"])
    # Up to one in each step, or so few that moving them is not worth it.
    assert abs(one - other) <= max(len(runs[name]["ours"].gradients), 0.1 * max(one, other))
    assert 1.1 * abs(one - other) < max(live) - min(live)


@pytest.mark.parametrize("name", [case.name for case in ANCHORED])
def test_anchors_and_values_are_asked_of_live_samples_alone_and_training_is_rlinfs(runs, name):
    run = runs[name]
    ours, stock = run["ours"], run["stock"]
    for found, expected in zip(ours.gradients, stock.gradients, strict=True):
        # Scored in passes of another size, by which the last bits of an anchor differ.
        assert deviation(found, expected) < 10 * GRADIENT
    assert deviation(ours.weights - ours.start, stock.weights - stock.start) < WEIGHTS
    epochs = run["settings"].update_epoch
    live = sum(map(sum, stock.valid)) / epochs
    scored, observations = sum(rows(ours, gradients=False)), 7 / 6
    assert scored < (0.9 if "grpo" in name else observations) * live
    assert len({tuple(kind for kind, _ in own) for own in ours.computed}) == 1

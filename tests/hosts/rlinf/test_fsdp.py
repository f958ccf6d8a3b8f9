"""Training, anchors and publication on two learner ranks, by every way in which FSDP shards a model."""

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.hosts.rlinf.learners import run_cases
from tests.hosts.rlinf.synthetic import Case

REFERENCE = "fsdp no_shard"
"""Every rank holds all parameters, so that nothing is ever gathered, freed or put together."""
SHARDINGS = {
    REFERENCE: {"strategy": "fsdp", "sharding_strategy": "no_shard"},
    "fsdp full_shard": {"strategy": "fsdp", "sharding_strategy": "full_shard"},
    "fsdp full_shard original": {
        "strategy": "fsdp",
        "sharding_strategy": "full_shard",
        "use_orig_params": True,
    },
    "fsdp shard_grad_op": {"strategy": "fsdp", "sharding_strategy": "shard_grad_op"},
    "fsdp2": {"strategy": "fsdp2"},
    "fsdp2 kept gathered": {"strategy": "fsdp2", "reshard_after_forward": False},
}
PPO = ("async.mode=train", "async.skip=false", "actor.global_batch_size=64", "algorithm.update_epoch=2")
STREAMED = (
    "async.mode=full",
    "async.skip=false",
    "actor.global_batch_size=64",
    "algorithm.group_size=4",
    "algorithm.update_epoch=1",
)
"""Three optimizer steps, so that late pieces are anchored at weights that are gone."""
WARM_UP = "actor.optim.critic_warmup_steps=8"
"""The critic alone is trained in the first batch and in the first two steps of the second."""
BF16 = ("mixed_precision.param_dtype=bf16", "mixed_precision.reduce_dtype=fp32")
MASKED = "async.skip.masked=true"
STALE = ("fsdp full_shard", "fsdp shard_grad_op")
"""Where a forward pass without gradients leaves parameters gathered."""
LEFT_OUT = (REFERENCE, *STALE, "fsdp2")


def case(work, sharding, algorithm, overrides, *changes):
    keys = [f"{name}={value}" for name, value in SHARDINGS[sharding].items()]
    return Case(
        name=f"{work} {sharding}",
        algorithm=algorithm,
        overrides=(
            *overrides,
            # RLinf clips by each FSDP2 rank's own norm, which is another than that of all ranks.
            "actor.optim.clip_grad=1e9",
            *(f"++actor.fsdp_config.{change}" for change in (*keys, *changes)),
        ),
        order=3,
        together=2,
        lag=1,
        batches=2,
        alone=True,
    )


CASES = [
    *(case("ppo", sharding, "ppo", PPO) for sharding in SHARDINGS),
    *(
        case("unmeasured", sharding, "ppo", (*PPO, "async.advanced.measure_ratios=false"))
        for sharding in STALE
    ),
    *(case("streamed", sharding, "grpo", STREAMED) for sharding in (REFERENCE, *STALE, "fsdp2")),
    *(case("left-out", sharding, "ppo", (*PPO, MASKED)) for sharding in LEFT_OUT),
    *(case("streamed-left-out", sharding, "grpo", (*STREAMED, MASKED)) for sharding in LEFT_OUT),
    *(case("bf16", sharding, "ppo", PPO, *BF16) for sharding in (REFERENCE, *STALE)),
    *(case("warm-up", sharding, "ppo", (*PPO, WARM_UP)) for sharding in (REFERENCE, *STALE, "fsdp2")),
]
PAIRS = [tuple(made.name.split(" ", 1)) for made in CASES if not made.name.startswith("unmeasured")]
sharded = pytest.mark.parametrize(("work", "sharding"), [pair for pair in PAIRS if pair[1] != REFERENCE])


@pytest.fixture(scope="module")
def runs():
    with tempfile.TemporaryDirectory() as directory:
        found = run_cases(2, CASES, Path(directory))
        yield {name: outcome["ours"] for name, outcome in found.items()}


def flat(published):
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(published.items())])


@sharded
def test_what_is_published_is_what_unsharded_ranks_publish(runs, work, sharding):
    found, expected = runs[f"{work} {sharding}"].published, runs[f"{work} {REFERENCE}"].published
    assert len(found) == len(expected) == 2
    way = flat(expected[-1]) - flat(expected[0])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert float((flat(ours) - flat(theirs)).norm() / way.norm()) < (2e-2 if work == "bf16" else 1e-4)


@sharded
def test_anchors_are_those_of_unsharded_ranks(runs, work, sharding):
    found, expected = runs[f"{work} {sharding}"].anchors, runs[f"{work} {REFERENCE}"].anchors
    assert all(len(anchors) >= 2 for anchors in expected)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, atol=3e-2 if work == "bf16" else 1e-4)


@pytest.mark.parametrize("sharding", LEFT_OUT)
@pytest.mark.parametrize(("work", "all_samples"), [("left-out", "ppo"), ("streamed-left-out", "streamed")])
def test_leaving_out_what_has_no_gradient_publishes_the_same_of_fewer_rows(runs, work, all_samples, sharding):
    found, expected = runs[f"{work} {sharding}"], runs[f"{all_samples} {sharding}"]
    way = flat(expected.published[-1]) - flat(expected.published[0])
    for ours, theirs in zip(found.published, expected.published, strict=True):
        assert float((flat(ours) - flat(theirs)).norm() / way.norm()) < 1e-4
    for ours, theirs in zip(found.computed, expected.computed, strict=True):
        for kind in (True, False):
            rows, all_rows = (sum(size for grads, size in own if grads == kind) for own in (ours, theirs))
            assert rows < 0.95 * all_rows
    # As many passes, of each kind, on both ranks.
    one, other = ([grads for grads, _ in own] for own in found.computed)
    assert one == other


@pytest.mark.parametrize("sharding", STALE)
def test_measuring_ratios_changes_neither_training_nor_what_is_published(runs, sharding):
    measured, unmeasured = runs[f"ppo {sharding}"], runs[f"unmeasured {sharding}"]
    assert any("mismatch/lag_1" in name for name in measured.metrics[-1])
    assert not any("mismatch" in name for name in unmeasured.metrics[-1])
    assert len(measured.gradients) == len(unmeasured.gradients) == 2 * 2 * 3
    assert all(map(torch.equal, measured.gradients, unmeasured.gradients))
    for ours, theirs in zip(measured.published, unmeasured.published, strict=True):
        assert torch.equal(flat(ours), flat(theirs))


@pytest.mark.parametrize(("work", "sharding"), PAIRS)
def test_every_tensor_that_is_published_is_of_the_last_batch(runs, work, sharding):
    for before, after in pairwise(runs[f"{work} {sharding}"].published):
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        trained = {
            name for name in before if not work.startswith("streamed") or not name.startswith("value_head")
        }
        assert moved == trained  # GRPO has no use for the critic


@sharded
def test_ratios_are_measured_alike(runs, work, sharding):
    found, expected = runs[f"{work} {sharding}"].metrics, runs[f"{work} {REFERENCE}"].metrics
    for ours, theirs in zip(found, expected, strict=True):
        wanted = {n: v for n, v in theirs.items() if n.startswith(("train/mismatch", "train/staleness"))}
        assert wanted
        close = (
            pytest.approx(wanted, rel=5e-2, abs=5e-2) if work == "bf16" else pytest.approx(wanted, 1e-3, 1e-5)
        )
        assert {name: ours[name] for name in wanted} == close

"""RLinf's NFT through this package: level 2 alone as RLinf's own runner, and every mode."""

from __future__ import annotations

import pytest
import torch

from tests.runs.conftest import Run, Runner, small

pytestmark = pytest.mark.ray
CONFIG = "metaworld_grpo_mlp"
FLOW = (
    "actor.model.model_type=tiny_flow",
    "actor.model.add_value_head=false",
    "algorithm.loss_type=embodied_nft",
    "+algorithm.nft_loss_form=mse",
    "+algorithm.nft_target_space=x0",
    "+algorithm.adv_clip_max=0.5",
    "+algorithm.max_drift=100",
)
NFT = (
    *FLOW,
    "algorithm.group_size=4",
    "env.eval.group_size=1",
    "env.train.reward_kind=dense",
    "env.train.reward_scale=100",
    "actor.optim.lr=0.01",
    "runner.save_interval=1",
)
ONE_SHARD = ("async.mode=rollout", "async.rollout.shards=1")


def weights(run: Run, step: int) -> dict[str, torch.Tensor]:
    saved = run.directory / CONFIG / "checkpoints" / f"global_step_{step}" / "actor"
    return torch.load(saved / "model_state_dict" / "full_weights.pt", weights_only=True)


@pytest.fixture
def train(runs: Runner):
    runs.declare("rlinf_async.models", "tiny_flow", "tests.runs.flow_policy:build")

    def several(*cases: tuple[str, ...]) -> list[Run]:
        ended = runs.several([small(CONFIG, *NFT, *overrides) for overrides in cases])
        for run in ended:
            assert run.status == 0, run.output
        return ended

    return several


def test_level_2_alone_trains_the_weights_of_rlinfs_own_runner(train):
    """Version 1 is published as the weights themselves, version 2 as a moving average."""
    average = "+algorithm.nft_tau=[1.0,0.3,0,2]"
    # RLinf's own runner comes last: it leaves its workers behind.
    ours, stock = train((average, *ONE_SHARD), (average, "async.mode=off"))
    for step in (1, 2, 3):
        theirs = weights(stock, step)
        assert theirs.keys() == weights(ours, step).keys()
        for name, tensor in theirs.items():
            assert torch.equal(weights(ours, step)[name], tensor), (step, name)
    for one, other in zip(stock.metrics, ours.metrics, strict=True):
        for name in ("train/actor/nft_loss", "train/actor/grad_norm", "train/actor/nft_tau", "env/return"):
            assert other[name] == pytest.approx(one[name]), name
        assert one["train/actor/grad_norm"] > 0
    assert [step["train/actor/nft_tau"] for step in ours.metrics] == pytest.approx([1.0, 0.65, 0.3])
    first, last = weights(stock, 1), weights(stock, 3)
    assert not any(torch.equal(first[name], tensor) for name, tensor in last.items())


@pytest.mark.nightly
@pytest.mark.parametrize("source", ["rollout", "resample"])
def test_in_full_mode_every_trajectory_is_trained_once_with_a_bounded_lag(train, source):
    overrides = (f"+algorithm.nft_xcur_source={source}", "+algorithm.nft_tau=[1.0,0.3,0,2]")
    (run,) = train(("async.mode=full", "runner.max_epochs=5", *overrides))
    assert run.summary["trajectories"] == {"produced": 40, "trained": 40, "in_flight": 0, "refused": {}}
    assert run.summary["staleness"]["max"] == 1
    assert all(step["train/actor/grad_norm"] > 0 for step in run.metrics)

"""Leaving out what follows the end of an episode, on the local host: what is learnt stays the same."""

from collections import Counter

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach, point_reach
from tests.hosts.local_runs import small_policy

pytestmark = pytest.mark.timeout(120)

HORIZON = 8


@pytest.fixture(autouse=True)
def many_arrive(monkeypatch):
    monkeypatch.setattr(PointReach, "radius", 0.8)


@pytest.fixture
def counts(monkeypatch):
    """Decisions and steps of environments, as they are made."""
    made = Counter()
    act = PointReach.decide

    def decide(self, actions):
        made["steps"] += len(actions)
        return act(self, actions)

    monkeypatch.setattr(PointReach, "decide", decide)
    return made


def settings_of(block, **changes):
    sizes = {
        "total_envs": 12,
        "env_workers": 6,
        "inference_ranks": 1,
        "horizon": HORIZON,
        "rollout_epochs": 2,
        "batches": 3,
        "global_batch_size": 48,
        "micro_batch_size": 12,
        "update_epoch": 2,
        "lr": 1e-3,
        "seed": 7,
    }
    return LocalSettings(asynchrony=AsyncConfig.from_mapping(block), **{**sizes, **changes})


def trained(block, **changes):
    settings = settings_of(block, **changes)
    torch.manual_seed(3)
    start = GaussianPolicy(state_dim=2, action_dim=2, hidden=8).state_dict()
    build = point_reach(group_size=settings.group_size, seed=settings.seed)
    return LocalTrainer(settings, build, small_policy, weights=start).run()


BLOCKS = {
    "levels off": {"mode": "off"},
    "deterministic": {"mode": "train", "train": {"max_staleness": 1}, "deterministic": True},
}


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_run_learns_what_it_would_learn_with_what_follows_the_ends(block, algorithm, counts):
    changes = {"algorithm": algorithm, "group_size": 2 if algorithm == "grpo" else 1}
    whole = trained(block, **changes)
    of_whole, counts["steps"] = counts["steps"], 0
    left_out = trained({**block, "skip": {"ended": True}}, **changes)
    assert counts["steps"] < 0.9 * of_whole
    for name, tensor in whole.weights.items():
        assert torch.allclose(left_out.weights[name], tensor, rtol=1e-5, atol=1e-7), name
    for ours, theirs in zip(left_out.metrics, whole.metrics, strict=True):
        for name in ("env/success_once", "env/return"):
            assert ours[name] == theirs[name]


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_equal_settings_give_equal_weights_with_rollouts_of_unequal_length(block):
    first, second = (trained({**block, "skip": True}) for _ in range(2))
    for name, tensor in first.weights.items():
        assert torch.equal(second.weights[name], tensor), name


@pytest.mark.parametrize("mode", ["train", "rollout", "streamer", "full"])
def test_every_trajectory_is_trained_once_in_every_mode(mode):
    result = trained({"mode": mode, "skip": True})
    assert result.ledger.trained == result.ledger.produced == 3 * 24
    assert result.ledger.env_steps_trained == 3 * 24 * HORIZON


def test_frames_that_environments_have_counted_are_told_with_each_step(monkeypatch):
    """Three of four frames are left out of each decision, and nothing counts those of other steps.

    Without the levels, as with them the decisions of a batch may all be made before an earlier step is
    reported.
    """
    monkeypatch.setattr(PointReach, "frames_drawn", 0, raising=False)
    monkeypatch.setattr(PointReach, "frames_left_out", 0, raising=False)
    act = PointReach.decide

    def decide(self, actions):
        self.frames_drawn += len(actions)
        self.frames_left_out += 3 * len(actions)
        return act(self, actions)

    monkeypatch.setattr(PointReach, "decide", decide)
    reports = trained({"mode": "lean"}).reports
    assert [report.as_metrics()["async/skipped/frames"] for report in reports] == [0.75] * len(reports)

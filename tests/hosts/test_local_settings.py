import numpy as np
import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.hosts.local.shard import Noise
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "sac"}, "algorithm='sac' must be one of ppo, grpo"),
        ({"algorithm": "grpo"}, "group_size=1 must be at least 2"),
        ({"horizon": 0}, "horizon=0 must be a whole number of at least 1; nearest: 1"),
        ({"lr": 0.0}, "lr=0.0 must be a finite number above 0"),
        ({"gamma": 1.5}, "gamma=1.5 must be a number from 0 to 1; nearest: 1"),
        ({"global_batch_size": 150}, "320 samples per batch .* global_batch_size=150"),
        ({"micro_batch_size": 64}, "global_batch_size=160 is not a multiple of micro_batch_size=64"),
        # The division into shards would refuse these environments, too: batches are looked at first.
        ({"micro_batch_size": 64, "env_workers": 3}, "is not a multiple of micro_batch_size=64"),
        ({"env_workers": 3}, "16 environments do not divide into 3 env workers"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_value_and_limit(changes, message):
    with pytest.raises(ValueError, match=message):
        LocalSettings(**changes)


def test_a_batch_smaller_than_a_shard_is_refused():
    block = {"mode": "rollout", "rollout": {"max_batch_size": 4}}
    with pytest.raises(ValueError, match="max_batch_size=4 is smaller than a shard of 8"):
        LocalSettings(asynchrony=AsyncConfig.from_mapping(block))


def test_every_inference_rank_has_a_shard_while_level_2_is_off():
    plan = LocalSettings(inference_ranks=4, env_workers=2).plan
    assert {plan.queue(shard)[0] for shard in range(plan.shards)} == {0, 1, 2, 3}


def test_noise_and_starts_do_not_depend_on_the_split_into_shards():
    whole, right = (Noise(first=first, size=size, width=2, seed=5) for first, size in ((0, 4), (2, 2)))
    for _ in range(3):
        assert torch.equal(whole.draw()[2:], right.draw())
    everybody, half = PointReach(8, group_size=2), PointReach(4, first=4, group_size=2)
    for _ in range(3):
        assert (everybody.begin()[4:] == half.begin()).all()


def test_members_of_a_group_start_alike_and_groups_do_not():
    states = PointReach(6, group_size=3).begin()
    assert (states[0] == states[2]).all()
    assert (states[0] != states[3]).any()


def test_a_point_is_rewarded_once_and_then_stands_still():
    point = PointReach(1)
    towards = -point.begin()
    played = [point.decide(towards * 10) for _ in range(8)]
    states, rewards, ended = map(np.array, zip(*played, strict=True))
    assert rewards.sum() == 1.0
    arrived = int(ended.argmax())
    assert ended[arrived:].all()
    assert not ended[:arrived].any()
    assert (states[arrived:] == states[arrived]).all()


def test_the_warm_start_of_rlinfs_policy_loads_and_acts_alike():
    pytest.importorskip("metaworld", reason="the metaworld extra is not installed")
    from rlinf_async.lab.demo.warm_start import ClonedPolicy

    theirs, ours = ClonedPolicy(-1.0), GaussianPolicy(state_dim=39, action_dim=4)
    ours.load_state_dict(theirs.state_dict())
    states = torch.randn(3, 39)
    assert torch.allclose(theirs(states), ours.sample(states, torch.zeros(3, 4)))


def test_log_probabilities_are_those_of_a_normal_distribution():
    policy = GaussianPolicy(state_dim=2, action_dim=3, hidden=8)
    states, noise = torch.randn(5, 2), torch.randn(5, 3)
    actions = policy.sample(states, noise)
    normal = torch.distributions.Normal(policy.sample(states, torch.zeros(5, 3)), policy.actor_logstd.exp())
    expected = normal.log_prob(actions).sum(dim=-1)
    assert torch.allclose(policy.logprobs(states, actions), expected, atol=1e-5)


@pytest.mark.timeout(120)
def test_meta_world_runs_in_this_host():
    pytest.importorskip("metaworld", reason="the metaworld extra is not installed")
    from rlinf_async.lab.demo.local_metaworld import metaworld
    from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings

    settings = LocalSettings(
        asynchrony=AsyncConfig.from_mapping({"mode": "full"}),
        total_envs=2,
        horizon=2,
        batches=2,
        global_batch_size=4,
        micro_batch_size=2,
    )
    task = TaskSettings("button-press-topdown-v3", max_episode_steps=2)
    result = LocalTrainer(settings, metaworld(task), GaussianPolicy).run()
    assert result.ledger.env_steps_trained == 8
    assert result.weights["actor_mean.weight"].shape == (4, 256)

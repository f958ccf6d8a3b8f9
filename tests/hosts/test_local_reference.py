"""The local host against a loop that knows no shards, brokers, pieces or threads."""

import copy

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.hosts.local.shard import Noise
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach, point_reach
from tests.hosts.local_runs import small_policy

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def many_arrive(monkeypatch):
    # So that episodes end early, and masks matter, from the first batch on.
    monkeypatch.setattr(PointReach, "radius", 0.6)


def settings_of(algorithm, **changes):
    sizes = {
        "total_envs": 12,
        "env_workers": 2,
        "horizon": 5,
        "rollout_epochs": 2,
        "batches": 3,
        "global_batch_size": 60,
        "micro_batch_size": 20,
        "update_epoch": 2,
        "lr": 1e-3,
        "seed": 7,
        "group_size": 3 if algorithm == "grpo" else 1,
    }
    return LocalSettings(algorithm=algorithm, **{**sizes, **changes})


def host_weights(settings, start):
    build = point_reach(group_size=settings.group_size, seed=settings.seed)
    return LocalTrainer(settings, build, small_policy, weights=start).run().weights


def fresh_policy():
    torch.manual_seed(3)
    return GaussianPolicy(state_dim=2, action_dim=2, hidden=8)


class StraightLine:
    """Synchronous PPO or GRPO in one thread: collect, estimate, train, again."""

    def __init__(self, settings, model):
        self.s, self.model = settings, model
        total = settings.total_envs
        self.envs = PointReach(total, group_size=settings.group_size, seed=settings.seed)
        self.noise = Noise(first=0, size=total, width=2, seed=settings.seed)
        actor = [p for name, p in model.named_parameters() if not name.startswith("value_head")]
        critic = [p for name, p in model.named_parameters() if name.startswith("value_head")]
        groups = [{"params": actor, "lr": settings.lr}, {"params": critic, "lr": settings.value_lr}]
        self.optimizer = torch.optim.Adam(groups, eps=1e-5)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # RLinf's first, empty step

    def train(self):
        for batch in range(self.s.batches):
            shuffle = torch.Generator().manual_seed(self.s.seed + 1009 * batch)
            rollouts = [self.estimate(self.collect()) for _ in range(self.s.rollout_epochs)]
            self.normalise(rollouts)
            names = rollouts[0].keys()
            samples = {name: torch.cat([r[name] for r in rollouts], dim=1).flatten(0, 1) for name in names}
            order = torch.randperm(self.s.samples_per_batch, generator=shuffle)
            for _ in range(self.s.update_epoch):
                for chosen in order.split(self.s.global_batch_size):
                    self.step({name: tensor[chosen] for name, tensor in samples.items()})
        return self.model.state_dict()

    @torch.no_grad()
    def collect(self):
        rollout = {name: [] for name in ("states", "actions", "logprobs", "values", "rewards", "ended")}
        states = torch.tensor(self.envs.begin())
        ended = torch.zeros(self.s.total_envs, dtype=torch.bool)
        for step in range(self.s.horizon + 1):
            actions = self.model.sample(states, self.noise.draw())
            rollout["values"].append(self.model.values(states))
            rollout["ended"].append(ended)
            if step == self.s.horizon:
                break
            rollout["states"].append(states)
            rollout["actions"].append(actions)
            rollout["logprobs"].append(self.model.logprobs(states, actions))
            states, rewards, ended = map(torch.tensor, self.envs.decide(actions.numpy()))
            rollout["rewards"].append(rewards)
        return {name: torch.stack(values) for name, values in rollout.items()}

    def estimate(self, rollout):
        rewards, values, ended = rollout["rewards"], rollout.pop("values"), rollout.pop("ended")
        valid = ~ended[:-1]
        advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
        if self.s.algorithm == "ppo":
            running = torch.zeros(self.s.total_envs)
            for t in reversed(range(self.s.horizon)):
                on = (~ended[t + 1]).float()
                running = (
                    rewards[t]
                    + self.s.gamma * values[t + 1] * on
                    - values[t]
                    + self.s.gamma * self.s.lam * on * running
                )
                advantages[t] = running
            returns = advantages + values[:-1]
        else:
            scores = (rewards * valid).sum(dim=0)
            for start in range(0, self.s.total_envs, self.s.group_size):
                group = slice(start, start + self.s.group_size)
                relative = (scores[group] - scores[group].mean()) / (scores[group].std() + 1e-6)
                advantages[:, group] = relative * valid[:, group]
        return rollout | {
            "valid": valid,
            "advantages": advantages,
            "returns": returns,
            "old_values": values[:-1],
        }

    def normalise(self, rollouts):
        if self.s.algorithm == "grpo":
            return
        # Side by side: the order in which a sum is rounded.
        advantages, valid = (
            torch.cat([r[name] for r in rollouts], dim=1) for name in ("advantages", "valid")
        )
        seen = advantages[valid].double()
        mean, std = float(seen.mean()), float(seen.std())
        for rollout in rollouts:
            rollout["advantages"] = (rollout["advantages"] - mean) / (std + 1e-5)

    def step(self, samples):
        self.optimizer.zero_grad()
        for start in range(0, self.s.global_batch_size, self.s.micro_batch_size):
            part = {name: tensor[start : start + self.s.micro_batch_size] for name, tensor in samples.items()}
            self.loss(part).backward()
        count = int(samples["valid"].sum())
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= count
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.s.clip_grad)
        self.optimizer.step()

    def loss(self, part):
        ratio = torch.exp(self.model.logprobs(part["states"], part["actions"]) - part["logprobs"])
        clipped = ratio.clamp(1 - self.s.clip, 1 + self.s.clip)
        surrogate = torch.max(-part["advantages"] * ratio, -part["advantages"] * clipped)
        loss = (surrogate * part["valid"]).sum()
        if self.s.algorithm == "ppo":
            values = self.model.values(part["states"])
            change = (values - part["old_values"]).clamp(-self.s.value_clip, self.s.value_clip)
            errors = (part["returns"] - values) ** 2, (part["returns"] - (part["old_values"] + change)) ** 2
            loss = loss + (0.5 * torch.max(*errors) * part["valid"]).sum()
        return loss


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("env_workers", [1, 2])
def test_all_levels_off_is_the_straight_line_loop_bit_for_bit(algorithm, env_workers):
    settings, policy = settings_of(algorithm, env_workers=env_workers), fresh_policy()
    start = copy.deepcopy(policy.state_dict())
    expected = StraightLine(settings, policy).train()
    found = host_weights(settings, start)
    assert not torch.equal(found["actor_mean.weight"], start["actor_mean.weight"])
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("shards", [1, 2])
def test_rollout_and_streamer_change_nothing_but_rounding_in_an_on_policy_step(algorithm, batches, shards):
    sizes = {"update_epoch": 1, "global_batch_size": 120, "batches": batches}
    start = fresh_policy().state_dict()
    levels = AsyncConfig.from_mapping(
        {
            "rollout": {"enabled": True, "shards": shards},
            "streamer": {"enabled": True, "micro_batch_size": 15},
            "advanced": {"normalization": "deferred", "balance": "exact"},
        }
    )
    off = host_weights(settings_of(algorithm, **sizes), start)
    on = host_weights(settings_of(algorithm, asynchrony=levels, **sizes), start)
    change = max(float((off[name] - start[name]).abs().max()) for name in off)
    apart = max(float((off[name] - on[name]).abs().max()) for name in off)
    assert change > 1e-4
    assert apart < 1e-3 * change


def test_recomputed_anchors_equal_what_the_policy_said_when_nothing_has_changed():
    """With one batch nothing is stale: a bound of 1 must train what a bound of 0 does."""
    sizes = {"update_epoch": 1, "global_batch_size": 120, "batches": 1}
    start = fresh_policy().state_dict()
    levels = AsyncConfig.from_mapping({"train": {"enabled": True, "max_staleness": 1}})
    off = host_weights(settings_of("ppo", **sizes), start)
    on = host_weights(settings_of("ppo", asynchrony=levels, **sizes), start)
    assert all(torch.allclose(off[name], on[name], atol=1e-6) for name in off)

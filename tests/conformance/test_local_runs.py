"""Whole runs of the local host, of environments and policies as packages declare them."""

import threading
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async.config import AsyncConfig
from rlinf_async.core.restarts import RestartBudget
from rlinf_async.hosts.local import LocalSettings, LocalTrainer, declared
from rlinf_async.hosts.local.declared import OwnChance
from rlinf_async.hosts.local.learner import LocalTraining
from rlinf_async.loops import env_restarts
from tests.conformance.environments import (
    ACTION,
    CHUNK,
    DrawsFromTorch,
    InPlaceArrays,
    InPlaceTensors,
    Steady,
)

pytestmark = pytest.mark.timeout(120)
HORIZON = 8


def told(states):
    """How old what a policy sees is, and of which episode, [B, 1]."""
    return states[:, 2:] + 100 * states[:, 1:2]


class Linear(torch.nn.Module):
    """A policy that samples by torch's generator; its critic says how old what it sees is."""

    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Linear(3, CHUNK * ACTION)
        self.log_std = torch.nn.Parameter(torch.full((ACTION,), -0.5))
        self.value_head = torch.nn.Linear(3, 1)

    def _policy(self, states):
        return torch.distributions.Normal(self.mean(states).view(-1, CHUNK, ACTION), self.log_std.exp())

    def predict_action_batch(self, env_obs, mode="train", **_):
        states = torch.as_tensor(env_obs["states"]).float()
        policy = self._policy(states)
        actions = policy.sample()
        return actions, {
            "prev_logprobs": policy.log_prob(actions),
            "prev_values": told(states),
            "forward_inputs": {"states": states, "action": actions.flatten(1)},
        }

    def forward(self, forward_inputs, **_):
        policy = self._policy(forward_inputs["states"])
        logprobs = policy.log_prob(forward_inputs["action"].view(-1, CHUNK, ACTION))
        return {"logprobs": logprobs, "values": self.value_head(forward_inputs["states"])}


class Telling(Linear):
    """Its critic says the same where it is trained."""

    def forward(self, forward_inputs, **_):
        return {**super().forward(forward_inputs), "values": told(forward_inputs["states"])}


def settings_of(**changes):
    sizes = {"total_envs": 16, "horizon": HORIZON, "batches": 3}
    batch = {"global_batch_size": 16 * HORIZON, "micro_batch_size": 16 * HORIZON}
    asynchrony = changes.pop("asynchrony", {"mode": "full", "rollout": {"shards": 4}})
    return LocalSettings(asynchrony=AsyncConfig.from_mapping(asynchrony), **{**sizes, **batch, **changes})


def run(env_cls, monkeypatch, *, rollouts=None, policy=Linear, on_fault=lambda fault: None, **changes):
    """A run whose learner's rollouts are added to `rollouts`."""
    if rollouts is not None:
        estimate = LocalTraining.estimate
        monkeypatch.setattr(
            LocalTraining, "estimate", lambda self, one: rollouts.append(one) or estimate(self, one)
        )
    monkeypatch.setattr(declared, "load_class", lambda group, name: env_cls)
    settings = settings_of(**changes)
    environments = declared.environments_of(OmegaConf.create({"env": {"env_class": "any"}}), settings)
    torch.manual_seed(1)
    build = lambda **_: declared.DeclaredPolicy(policy())  # noqa: E731
    return LocalTrainer(settings, environments, build, on_fault=on_fault).run()


@pytest.mark.parametrize("env_cls", [InPlaceArrays, InPlaceTensors])
def test_a_rollout_is_bootstrapped_with_the_state_after_its_last_step(env_cls, monkeypatch):
    rollouts = []
    run(env_cls, monkeypatch, rollouts=rollouts, batches=10, policy=Telling)
    assert len(rollouts) >= 10
    for rollout in rollouts:
        episode = rollout["forward_inputs"]["states"][..., 1]
        assert (episode == episode[:1]).all()
        assert torch.equal(rollout["prev_values"], 100 * episode[:1] + torch.arange(HORIZON + 1)[:, None])


class CutOff(Steady):
    """Is cut off after four decisions; what comes then is rewarded with 100 each step."""

    def give(self, seen, rewards, terminations, truncations, info):
        truncations[:, -1] = self.age >= 4
        return super().give(
            seen, 100.0 * (self.age > 4)[:, None].expand(-1, CHUNK), terminations, truncations, info
        )


class Arrives(CutOff):
    """The same, of a goal that is reached."""

    def give(self, seen, rewards, terminations, truncations, info):
        terminations[:, 0] = self.age >= 4
        return super().give(seen, rewards, terminations, truncations, info)


@pytest.mark.parametrize(("env_cls", "success"), [(CutOff, 0.0), (Arrives, 1.0)])
def test_rewards_after_the_end_count_nothing_and_a_cut_is_no_success(env_cls, success, monkeypatch):
    rollouts = []
    result = run(env_cls, monkeypatch, rollouts=rollouts)
    for metrics in result.metrics:
        assert (metrics["env/return"], metrics["env/success_once"]) == (0.0, success)
    for rollout in rollouts:
        assert rollout["ended"].sum(dim=0).eq(HORIZON + 1 - 4).all()
        assert torch.equal(
            rollout["valid"], (torch.arange(HORIZON) < 4)[:, None].expand(-1, rollout["valid"].shape[1])
        )


class ShowsNoNumbers(Steady):
    """Shows what is no number where a run looks last, every seventh decision of its life."""

    lives: ClassVar[list[int]] = []

    def observe(self, seen, where="now"):
        self.lives.append(self.place)
        depth = np.zeros((self.size, 2), dtype=np.float32)
        depth[0, 0] = np.nan if len(self.lives) % 37 == 36 and len(self.lives) > 200 else 0
        return {**seen, "states": seen["states"].numpy() + depth[:, :1], "camera": {"depth": depth}}


def test_environments_that_show_no_numbers_at_any_depth_are_built_anew_and_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(ShowsNoNumbers, "lives", [])
    monkeypatch.setattr(env_restarts, "RestartBudget", partial(RestartBudget, first_wait_s=0.0))
    result = run(ShowsNoNumbers, monkeypatch, batches=10)
    assert result.ledger.refused["not finite"] >= 3
    assert len(result.reports) == 10
    assert all(torch.isfinite(tensor).all() for tensor in result.weights.values())


@pytest.mark.parametrize("asynchrony", [{}, {"mode": "full"}])
def test_steps_of_environments_are_counted_and_not_decisions(asynchrony, monkeypatch):
    result = run(Steady, monkeypatch, asynchrony=asynchrony)
    assert [report.as_metrics()["async/env_steps"] for report in result.reports] == [16 * HORIZON * CHUNK] * 3
    assert result.ledger.env_steps_trained == 3 * 16 * HORIZON * CHUNK


def test_environments_that_draw_from_the_generator_of_the_process_draw_nothing_twice(monkeypatch):
    monkeypatch.setattr(DrawsFromTorch, "drawn", [])
    run(DrawsFromTorch, monkeypatch, batches=60, horizon=1, global_batch_size=16, micro_batch_size=16)
    assert len(DrawsFromTorch.drawn) >= 960
    assert len(set(DrawsFromTorch.drawn)) == len(DrawsFromTorch.drawn)


@pytest.mark.parametrize("asynchrony", [{}, {"mode": "train", "deterministic": True}])
def test_a_run_that_depends_on_no_timing_is_reproduced_whatever_has_been_drawn_before(
    asynchrony, monkeypatch
):
    weights = []
    for seed in (3, 4):
        found = run(Steady, monkeypatch, asynchrony=asynchrony)
        torch.manual_seed(seed)
        torch.rand(seed)
        weights.append(found.weights)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


DRAWS = {
    "rand": lambda: torch.rand(3, 4),
    "randn": lambda: torch.randn(3),
    "randn of half precision": lambda: torch.randn(3, dtype=torch.float16),
    "randint": lambda: torch.randint(0, 9, (5,)),
    "randperm": lambda: torch.randperm(7),
    "rand_like": lambda: torch.rand_like(torch.zeros(3)),
    "randn_like": lambda: torch.randn_like(torch.zeros(3)),
    "normal": lambda: torch.normal(torch.zeros(3), torch.ones(3)),
    "multinomial": lambda: torch.multinomial(torch.ones(2, 5), 3),
    "exponential": lambda: torch.empty(3).exponential_(),
    "Normal": lambda: torch.distributions.Normal(torch.zeros(3), 1.0).rsample(),
    "Beta": lambda: torch.distributions.Beta(2.0, 1.0).sample((4,)),
    "Categorical": lambda: torch.distributions.Categorical(logits=torch.zeros(3, 8)).sample(),
    "Dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(4)).sample(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(40)),
    "native dropout": lambda: torch.native_dropout(torch.ones(40), 0.5, True)[0],
    "gumbel softmax": lambda: torch.nn.functional.gumbel_softmax(torch.zeros(3, 4)),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(
        *[torch.ones(1, 2, 8, 4)] * 3, dropout_p=0.5
    ),
    "several": lambda: torch.cat([torch.rand(2), torch.randn(2), torch.rand(2)]),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_seed_of_its_own_gives_what_the_generator_of_the_process_would_and_leaves_that_alone(
    draw, gradients
):
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(gradients):
        torch.manual_seed(5)
        expected = draw()
        torch.manual_seed(6)
        before = torch.get_rng_state()
        with OwnChance(5):
            found = draw()
        assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_other_threads_draw_from_the_generator_of_the_process_meanwhile():
    drawn = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        expected = torch.rand(3)
        torch.manual_seed(6)
        with OwnChance(5):
            torch.rand(3)
            other = threading.Thread(target=lambda: drawn.append(torch.rand(3)))
            other.start()
            other.join()
    assert torch.equal(drawn[0], expected)


def test_what_is_given_a_generator_draws_from_that_one():
    mine = torch.Generator().manual_seed(8)
    with OwnChance(5):
        found = torch.rand(3, generator=mine)
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(8)))

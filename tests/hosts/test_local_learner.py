import copy

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.tracing import BusyMeter
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.learner import LocalLearner
from rlinf_async.hosts.local.policy import GaussianPolicy

HORIZON, ENVS = 4, 6


def settings_of(block=None, **changes):
    sizes = {
        "total_envs": ENVS,
        "horizon": HORIZON,
        "global_batch_size": HORIZON * ENVS,
        "micro_batch_size": HORIZON * ENVS,
        "hidden": 8,
        "lr": 1e-2,
        "asynchrony": AsyncConfig.from_mapping(block),
    }
    return LocalSettings(**{**sizes, **changes})


def policy(seed=0):
    torch.manual_seed(seed)
    return GaussianPolicy(state_dim=2, action_dim=2, hidden=8)


@torch.no_grad()
def piece(actor, *, batch=0, seed=0, ends_at=2):
    """A rollout by `actor` in which the first environment ends its episode with decision `ends_at`."""
    chance = torch.Generator().manual_seed(seed)
    states = torch.randn(HORIZON + 1, ENVS, 2, generator=chance)
    actions = actor.sample(states[:-1], torch.randn(HORIZON, ENVS, 2, generator=chance))
    ended = torch.zeros(HORIZON + 1, ENVS, dtype=torch.bool)
    ended[ends_at + 1 :, 0] = True
    payload = {
        "states": states,
        "actions": actions,
        "logprobs": actor.logprobs(states[:-1], actions),
        "values": actor.values(states),
        "rewards": torch.randn(HORIZON, ENVS, generator=chance),
        "ended": ended,
    }
    ticket = Ticket(shard=0, batch=batch, epoch=0, version=batch)
    return Piece(
        ticket=ticket, part=0, rank=0, size=ENVS, oldest=batch, newest=batch, env_steps=24, payload=payload
    )


def learner_of(settings, model):
    return LocalLearner(settings=settings, model=model, busy=BusyMeter())


def samples_of(learner, given):
    """What `learner` trains on when it is handed `given` as a whole batch."""
    learner.begin(0)
    learner.accept([given])
    learner.finish()
    return learner._samples[0]


def test_off_policy_samples_are_anchored_at_the_policy_that_trains_them():
    actor, current = policy(0), policy(1)
    given, before = piece(actor), copy.deepcopy(current)
    samples = samples_of(learner_of(settings_of({"mode": "train"}), current), given)
    with torch.no_grad():
        anchor = before.logprobs(samples["states"], samples["actions"])
        values = before.values(samples["states"])
    assert torch.allclose(samples["old_logprobs"], anchor, atol=1e-6)
    assert torch.allclose(samples["old_values"], values, atol=1e-6)


def test_off_policy_advantages_are_weighted_by_proximal_over_behaviour():
    actor, current = policy(0), policy(1)
    given, before = piece(actor), copy.deepcopy(current)
    samples = samples_of(learner_of(settings_of({"mode": "train"}), current), given)
    relabelled = copy.deepcopy(given)
    with torch.no_grad():
        payload = relabelled.payload
        payload["values"] = before.values(payload["states"])
        payload["logprobs"] = before.logprobs(payload["states"][:-1], payload["actions"])
    plain = samples_of(learner_of(settings_of(), before), relabelled)
    weights = torch.exp(payload["logprobs"] - given.payload["logprobs"]).flatten()
    assert not torch.allclose(weights, torch.ones_like(weights), atol=1e-2)
    assert torch.allclose(samples["advantages"], plain["advantages"] * weights, atol=1e-5)


def test_without_a_correction_the_acting_policy_stays_the_anchor():
    block = {"mode": "train", "train": {"correction": "none", "accept_bias": True}}
    given = piece(policy(0))
    samples = samples_of(learner_of(settings_of(block), policy(1)), given)
    assert torch.equal(samples["old_logprobs"], given.payload["logprobs"].flatten())


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_cut_into_micro_batches_changes_nothing_but_rounding(size):
    whole, cut = policy(0), policy(0)
    samples_of(learner_of(settings_of(), whole), piece(policy(0)))
    samples_of(learner_of(settings_of(micro_batch_size=size), cut), piece(policy(0)))
    pairs = zip(whole.parameters(), cut.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)


def test_steps_after_the_end_of_an_episode_are_not_trained_on():
    given, changed = piece(policy(0), ends_at=1), piece(policy(0), ends_at=1)
    changed.payload["rewards"][2:, 0] = 100.0
    changed.payload["states"][2:-1, 0] = 5.0
    one, other = policy(0), policy(0)
    samples_of(learner_of(settings_of(), one), given)
    samples_of(learner_of(settings_of(), other), changed)
    # The value of the observation that ends the episode is not used, and nothing after it is.
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.allclose(left, right, atol=1e-6) for left, right in pairs)


def test_a_streamed_batch_is_normalised_by_the_batch_before():
    learner = learner_of(settings_of({"mode": "streamer"}), policy(0))
    samples_of(learner, piece(policy(0), seed=1))
    mean, std = learner._scale.mean, learner._scale.std
    raw = learner._estimate(learner._anchored(piece(policy(0), seed=2).payload))["advantages"]
    learner.begin(1)
    learner.accept([piece(policy(0), seed=2, batch=1)])
    assert torch.allclose(learner._samples[0]["advantages"], ((raw - mean) / (std + 1e-5)).flatten())
    learner.finish()
    assert learner._scale.mean != mean


def test_a_batch_without_a_single_signal_moves_nothing_under_grpo():
    settings = settings_of(algorithm="grpo", group_size=3)
    model = policy(0)
    before = copy.deepcopy(model)
    given = piece(policy(0))
    given.payload["rewards"].zero_()
    samples_of(learner_of(settings, model), given)
    pairs = zip(before.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)

"""The policy of tokens: what it draws, and what it says of it."""

import numpy as np
import pytest
import torch

from benchmarks.learning.points import (
    BINS_PER_TOKEN,
    TOKENS_56,
    TOKENS_PER_CHUNK,
    PointsStart,
    bins,
    centres,
    points_start,
)


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    fresh = TOKENS_56.fresh_policy(8)
    torch.nn.init.normal_(fresh.actor_mean.weight, std=0.5)
    return fresh


@torch.no_grad()
def test_log_probabilities_are_those_of_the_tokens_that_were_drawn(policy):
    states = torch.randn(5, 2)
    actions = policy.sample(states, torch.randn(5, TOKENS_PER_CHUNK))
    assert actions.shape == (5, TOKENS_PER_CHUNK)
    assert actions.abs().max() < 1
    categorical = torch.distributions.Categorical(
        logits=policy.actor_mean(policy.backbone(states)).view(5, TOKENS_PER_CHUNK, BINS_PER_TOKEN)
    )
    numbers = ((actions + 1) / 2 * BINS_PER_TOKEN).long()
    assert torch.allclose(policy.logprobs(states, actions), categorical.log_prob(numbers), atol=1e-5)


@torch.no_grad()
def test_tokens_are_drawn_as_often_as_they_are_probable(policy):
    draws = 20_000
    state = torch.tensor([[0.4, -0.3]])
    noise = torch.randn(draws, TOKENS_PER_CHUNK, generator=torch.Generator().manual_seed(3))
    numbers = bins(policy.sample(state.expand(draws, -1), noise))[:, 7]
    found = np.bincount(numbers.numpy(), minlength=BINS_PER_TOKEN) / draws
    logits = policy.actor_mean(policy.backbone(state)).view(TOKENS_PER_CHUNK, BINS_PER_TOKEN)[7]
    expected = torch.softmax(logits, dim=0).numpy()
    assert expected.max() > 2 / BINS_PER_TOKEN
    assert np.abs(found - expected).max() < 4 * np.sqrt(expected.max() / draws)


def test_every_bin_is_its_centres_own():
    numbers = torch.arange(BINS_PER_TOKEN)
    assert torch.equal(bins(centres(numbers)), numbers)
    assert bins(torch.tensor([-1.0, 1.0])).tolist() == [0, BINS_PER_TOKEN - 1]


def test_points_move_by_the_mean_of_a_chunk():
    chunk = np.zeros((1, TOKENS_PER_CHUNK), dtype=np.float32)
    chunk[0, ::2], chunk[0, 1] = 0.5, 0.28  # 28 moves along the first axis, one along the second
    points = TOKENS_56.environments([0.01], group_size=1, seed=0)(0, 1)
    before = points.begin()
    after = points.decide(chunk)[0]
    assert after - before == pytest.approx(np.array([[0.5, 0.01]]) * points.stride, abs=1e-6)


def test_a_policy_is_cloned_to_the_success_that_is_asked_for():
    start = PointsStart(
        radii=(0.15, 0.06),
        seed=1,
        horizon=10,
        hidden=64,
        lowest_success=0.3,
        highest_success=0.4,
        toy=TOKENS_56,
    )
    state = points_start(start)
    assert state["actor_mean.weight"].shape == (TOKENS_PER_CHUNK * BINS_PER_TOKEN, 64)

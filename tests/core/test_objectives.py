import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.objectives import (
    bounded_logprobs,
    gae,
    group_relative,
    importance_weight,
    loglinear,
    ppo_loss,
    valid_steps,
    value_loss,
    weight_measures,
    without_masked,
    without_signal,
)

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def policies(seed, shape=(64,), spread=0.7):
    """Log-probabilities of theta, prox and mu, and advantages."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(-1, 0.5, shape)
    prox = mu + rng.normal(0, spread, shape)
    theta = prox + rng.normal(0, spread, shape)
    return theta, prox, mu, rng.normal(0, 2, shape)


def tensors(*arrays):
    return [torch.tensor(array, dtype=torch.float32) for array in arrays]


def behaviour_weight(proximal, behaviour):
    return importance_weight(proximal, behaviour, correction="decoupled", max_weight=np.inf)


def decouple(advantages, proximal, behaviour):
    return advantages * behaviour_weight(proximal, behaviour)


def decoupled_ppo(theta, prox, mu, advantage, dual_clip=None):
    """Hilton et al. 2022, equation 2, one sample at a time; dual clip of Ye et al. 2020, equation 5."""
    losses = []
    for t, p, m, a in zip(theta, prox, mu, advantage, strict=True):
        ratio = np.exp(t) / np.exp(p)
        objective = min(ratio * a, min(max(ratio, 1 - 0.2), 1 + 0.28) * a)
        if dual_clip is not None and a < 0:
            objective = max(objective, dual_clip * a)
        losses.append(-(np.exp(p) / np.exp(m)) * objective)
    return np.array(losses)


@pytest.mark.parametrize("dual_clip", [None, 3.0, 1.1])
@pytest.mark.parametrize("seed", range(5))
def test_ppo_with_decoupled_advantages_is_decoupled_ppo(seed, dual_clip):
    theta, prox, mu, advantage = policies(seed)
    t, p, m, a = tensors(theta, prox, mu, advantage)
    loss = ppo_loss(t, p, decouple(a, p, m), **CLIP, dual_clip=dual_clip)
    assert np.allclose(loss.numpy(), decoupled_ppo(theta, prox, mu, advantage, dual_clip), atol=1e-4)


def test_the_dual_clip_binds_somewhere_in_these_tests():
    theta, prox, mu, advantage = policies(0)
    assert (
        decoupled_ppo(theta, prox, mu, advantage) > decoupled_ppo(theta, prox, mu, advantage, 1.1) + 1e-3
    ).any()


def test_without_lag_decoupled_ppo_is_ppo():
    theta, _, mu, advantage = policies(1)
    t, m, a = tensors(theta, mu, advantage)
    plain = ppo_loss(t, m, a, **CLIP)
    assert torch.equal(ppo_loss(t, m, decouple(a, m, m), **CLIP), plain)
    assert np.allclose(plain.numpy(), decoupled_ppo(theta, mu, mu, advantage), atol=1e-4)


def test_at_the_anchor_the_gradient_is_the_weighted_policy_gradient():
    _, prox, mu, advantage = policies(2)
    p, m, a = tensors(prox, mu, advantage)
    theta = p.clone().requires_grad_()
    ppo_loss(theta, p, decouple(a, p, m), **CLIP, dual_clip=3.0).sum().backward()
    assert np.allclose(theta.grad.numpy(), -np.exp(prox - mu) * advantage, atol=1e-4)


def test_no_gradient_flows_through_the_weight():
    _, prox, mu, advantage = policies(3)
    p, m, a = tensors(prox, mu, advantage)
    p.requires_grad_()
    m.requires_grad_()
    assert not decouple(a, p, m).requires_grad
    assert not behaviour_weight(p, m).requires_grad


def test_a_clipped_sample_has_no_gradient():
    theta = torch.tensor([0.5, -0.5], requires_grad=True)
    ppo_loss(theta, torch.zeros(2), torch.tensor([1.0, -1.0]), **CLIP).sum().backward()
    assert theta.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("correction", "expected"), [("none", 1.0), ("decoupled", np.exp(2.0)), ("tis", np.exp(1.0))]
)
def test_weights_are_float32_whatever_the_policy_computes_in(correction, expected):
    prox, mu = torch.tensor([-1.0], dtype=torch.bfloat16), torch.tensor([-3.0], dtype=torch.bfloat16)
    weight = importance_weight(prox, mu, correction=correction, max_weight=np.exp(1.0))
    assert weight.dtype == torch.float32
    assert weight.item() == pytest.approx(expected, rel=1e-6)


def test_a_dual_clip_of_one_or_less_is_refused():
    with pytest.raises(ValueError, match=r"dual_clip=1\.0 must be greater than 1"):
        ppo_loss(torch.zeros(1), torch.zeros(1), torch.ones(1), **CLIP, dual_clip=1.0)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    bound=st.floats(0.1, 5.0),
)
def test_weights_are_truncated_by_tis(seed, shape, bound):
    _, prox, mu, _ = policies(seed, tuple(shape))
    p, m = tensors(prox, mu)
    rho = np.exp(p.numpy() - m.numpy())
    truncated = importance_weight(p, m, correction="tis", max_weight=bound).numpy()
    assert np.allclose(truncated, np.minimum(rho, bound), rtol=1e-5)
    assert torch.equal(importance_weight(p, m, correction="none", max_weight=bound), torch.ones_like(p))


def test_without_a_bound_every_weight_is_the_decoupled_one():
    _, prox, mu, _ = policies(4)
    p, m = tensors(prox, mu)
    unbounded = importance_weight(p, m, correction="tis", max_weight=np.inf)
    assert torch.equal(unbounded, behaviour_weight(p, m))


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_interpolated_anchor_stands_one_version_behind_the_current_one(lag):
    theta, _, mu, _ = policies(6)
    t, m = tensors(theta, mu)
    t.requires_grad_()
    anchor = loglinear(t, m, torch.full_like(m, lag))
    assert not anchor.requires_grad
    assert np.allclose(anchor.numpy(), mu + lag / (lag + 1) * (theta - mu), atol=1e-5)


def gae_by_definition(rewards, values, dones, gamma, lam):
    """Equation 16 as a double sum, each advantage by itself."""
    steps, width = rewards.shape
    advantages = np.zeros((steps, width))
    for env in range(width):
        for t in range(steps):
            discount = 1.0
            for k in range(t, steps):
                following = 0.0 if dones[k + 1, env] else values[k + 1, env]
                advantages[t, env] += discount * (rewards[k, env] + gamma * following - values[k, env])
                if dones[k + 1, env]:
                    break
                discount *= gamma * lam
    return advantages


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 9),
    width=st.integers(1, 4),
    gamma=st.sampled_from([0.9, 0.99, 1.0]),
    lam=st.sampled_from([0.0, 0.95, 1.0]),
)
def test_gae_is_the_discounted_sum_of_residuals_up_to_the_end_of_the_episode(seed, steps, width, gamma, lam):
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(steps, width)), rng.normal(size=(steps + 1, width))
    dones = rng.random((steps + 1, width)) < 0.3
    advantages, returns = gae(
        torch.tensor(rewards), torch.tensor(values), torch.tensor(dones), gamma=gamma, lam=lam
    )
    expected = gae_by_definition(rewards, values, dones, gamma, lam)
    assert np.allclose(advantages.numpy(), expected)
    assert np.allclose(returns.numpy(), expected + values[:-1])


def test_group_relative_advantages_compare_an_episode_with_its_own_group():
    scores = np.random.default_rng(0).normal(size=12).astype(np.float32)
    advantages = group_relative(torch.from_numpy(scores), 4).numpy()
    for group in range(3):
        members = scores[4 * group : 4 * group + 4]
        expected = (members - members.mean()) / (members.std(ddof=1) + 1e-6)
        assert np.allclose(advantages[4 * group : 4 * group + 4], expected, atol=1e-5)


def test_episodes_that_do_not_fill_groups_are_refused():
    with pytest.raises(ValueError, match="5 episodes do not divide into groups of 2"):
        group_relative(torch.zeros(5), 2)


def test_the_value_loss_takes_the_worse_of_the_clipped_and_the_free_value():
    values, old, returns = torch.tensor([2.0, 0.1, 3.0]), torch.zeros(3), torch.tensor([2.0, 1.0, 0.0])
    loss = value_loss(values, old, returns, clip=0.5)
    assert loss.tolist() == pytest.approx([0.5 * 1.5**2, 0.5 * 0.9**2, 0.5 * 3.0**2])


def test_only_a_weight_that_float32_cannot_hold_is_cut():
    behaviour = torch.zeros(4)
    proximal = torch.tensor([3.0, 19.0, 1000.0, -1000.0])
    weights = behaviour_weight(proximal, behaviour)
    assert torch.equal(weights[:2], proximal[:2].exp())
    assert torch.equal(weights[2:], torch.tensor([20.0, -20.0]).exp())


def test_the_bound_itself_is_allowed_and_binds_the_corrections_that_have_one():
    behaviour, proximal = torch.zeros(3), torch.tensor([0.0, 1.0, -1.0])

    def weights(correction):
        return importance_weight(proximal, behaviour, correction=correction, max_weight=1.0).tolist()

    low, high = float(torch.tensor(-1.0).exp()), float(torch.tensor(1.0).exp())
    assert weights("tis") == [1.0, 1.0, low]
    assert weights("decoupled") == [1.0, high, low]


def test_values_are_clipped_around_the_old_ones_in_both_directions():
    old, returns = torch.full((4,), 10.0), torch.tensor([0.0, 0.0, 20.0, 20.0])
    values = torch.tensor([9.5, 7.0, 10.5, 13.0])
    loss = value_loss(values, old, returns, clip=1.0)
    assert loss.tolist() == [0.5 * (each**2) for each in (9.5, 9.0, 9.5, 9.0)]


def test_groups_that_hardly_differ_are_divided_by_a_little_more_than_their_spread():
    advantages = group_relative(torch.tensor([0.0, 1e-6], dtype=torch.float64), 2)
    spread = 1e-6 / 2**0.5
    assert advantages.tolist() == pytest.approx([-0.5e-6 / (spread + 1e-6), 0.5e-6 / (spread + 1e-6)])


def test_an_end_concerns_the_later_steps_of_its_own_episode_alone():
    dones = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]).bool()
    assert valid_steps(dones).long().tolist() == [[1, 1, 1], [1, 0, 1], [1, 0, 1]]


EXTREMES = (0.0, 1.0, -1.0, 88.0, 100.0, -100.0, 1000.0, -1000.0, 3e38, -3e38)


@pytest.mark.parametrize("dual_clip", [None, 3.0])
@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("log_ratio", EXTREMES)
def test_a_policy_however_far_away_has_a_finite_loss_and_gradient(log_ratio, advantage, dual_clip):
    logprobs = torch.tensor([log_ratio], requires_grad=True)
    loss = ppo_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), **CLIP, dual_clip=dual_clip)
    loss.sum().backward()
    ratio = np.exp(np.clip(log_ratio, -20, 20))
    expected = -min(ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage)
    if dual_clip is not None and advantage < 0:
        expected = min(expected, -dual_clip * advantage)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert torch.isfinite(logprobs.grad).all()


def test_an_advantage_of_0_and_a_clipped_ratio_have_no_gradient():
    logprobs = torch.tensor([100.0, 100.0, -100.0], requires_grad=True)
    ppo_loss(logprobs, torch.zeros(3), torch.tensor([0.0, 1.0, -1.0]), **CLIP).sum().backward()
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("correction", ["decoupled", "tis"])
@pytest.mark.parametrize("difference", EXTREMES)
def test_no_weight_and_no_measure_of_it_is_infinite(difference, correction):
    given = {"correction": correction, "max_weight": 2.0}
    proximal, behaviour = torch.tensor([difference]), torch.zeros(1)
    weights = importance_weight(proximal, behaviour, **given)
    measures = weight_measures(weights, proximal, behaviour, **given)
    assert torch.isfinite(weights).all()
    assert all(torch.isfinite(measure).all() for measure in measures.values())
    if correction != "decoupled":
        assert measures["actor/behaviour_bounded"].item() == float(difference > np.log(2.0))


def test_log_probabilities_are_kept_to_the_bit_until_they_are_cut():
    old = torch.randn(1000) * 3
    near = (old + torch.randn(1000)).requires_grad_()
    kept, anchor = bounded_logprobs(near, old)
    assert torch.equal(kept, near)
    assert torch.equal(anchor, old)
    far = torch.tensor([-7.0, 93.0], requires_grad=True)
    cut, _ = bounded_logprobs(far, torch.tensor([93.0, -7.0]))
    assert cut.tolist() == [73.0, 13.0]
    cut.sum().backward()
    assert far.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("now", "before", "difference"),
    [("inf", 0.0, 20.0), ("-inf", 0.0, -20.0), (0.0, "-inf", 20.0), (0.0, "inf", -20.0)],
)
def test_what_a_policy_never_does_or_always_does_is_cut_like_anything_else_that_is_far(
    now, before, difference
):
    logprobs = torch.tensor([float(now)], requires_grad=True)
    cut, anchor = bounded_logprobs(logprobs, torch.tensor([float(before)]))
    (cut - anchor).exp().sum().backward()
    assert (cut - anchor).item() == pytest.approx(difference, abs=1e-2)
    assert logprobs.grad.item() == 0.0
    behaviour = torch.tensor([float(before)])
    weights = importance_weight(logprobs, behaviour, correction="decoupled", max_weight=2.0)
    assert weights.item() == pytest.approx(np.exp(difference))
    loss = ppo_loss(logprobs, behaviour, torch.tensor([1.0]), **CLIP)
    assert loss.item() == pytest.approx(-min(np.exp(difference), 1.28), rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e30])
def test_what_is_masked_counts_nothing_and_has_no_gradient(bad):
    mask = torch.tensor([True, False])
    values = torch.tensor([2.0, bad], requires_grad=True)
    (without_masked(mask, values) ** 2).sum().backward()
    assert without_masked(mask, values).tolist() == [2.0, 0.0]
    assert values.grad.tolist() == [4.0, 0.0]


SILENT = {
    "seven of 0.7": (torch.full((7,), 0.7), 7),
    "sums of 300": (torch.full((300, 3), 1.7).sum(0), 3),
    "sums in another order": (
        torch.stack([torch.tensor([0.1, 0.2, 0.3, 1e3]).sum(), torch.tensor([1e3, 0.3, 0.2, 0.1]).sum()]),
        2,
    ),
    "zeros": (torch.zeros(8), 4),
    "half precision": (torch.full((6,), 0.7, dtype=torch.bfloat16), 3),
    "double precision": (torch.full((5,), 0.1, dtype=torch.float64) * 3, 5),
    "whole numbers": (torch.full((4,), 7), 4),
    "large ones": (torch.full((5,), -1e30), 5),
    "groups of one": (torch.tensor([0.3, 5.0]), 1),
}


@pytest.mark.parametrize(("scores", "size"), SILENT.values(), ids=SILENT)
def test_a_group_without_signal_has_advantages_of_exactly_0(scores, size):
    assert without_signal(scores, size).all()
    advantages = group_relative(scores, size)
    assert torch.equal(advantages, torch.zeros_like(advantages))


@given(
    st.floats(-1e3, 1e3, width=32),
    st.integers(2, 16),
    st.integers(1, 300),
    st.integers(0, 2**32),
)
def test_equal_returns_are_silent_in_whichever_order_their_rewards_are_added(reward, size, steps, seed):
    rng = random.Random(seed)  # Hypothesis' own notes every number that it draws
    rewards = [reward * rng.random() for _ in range(steps)]
    shuffled = [rng.sample(rewards, steps) for _ in range(size)]
    scores = torch.tensor(shuffled, dtype=torch.float32).sum(dim=1)
    assert (group_relative(scores, size) == 0).all()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_group_with_signal_keeps_rlinfs_advantages_to_the_bit(size):
    scores = torch.rand(4 * size).round(decimals=2)
    scores[:2] = torch.tensor([0.0, 1e-4])  # a small signal is one
    scores[2:size] = 0.0
    groups = scores.view(-1, size)
    expected = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-6)
    assert not without_signal(scores, size)[0]
    loud = ~without_signal(scores, size)
    assert torch.equal(group_relative(scores, size).view(-1, size)[loud], expected[loud])

"""Weights of what is scored in part, by numpy and by chains of which everything is known."""

import numpy as np
import pytest
import torch

from rlinf_async.core.objectives import importance_weight, weight_measures
from rlinf_async.core.scored import WHOLE, Scored

ONE_OF_4 = Scored(steps=4)
MEAN_OF_4 = Scored(steps=4, joint=True)
LOG_RATIOS = [-3.0, -0.4, -0.05, 0.0, 0.02, 0.2, 0.9, 300.0]


def weights(scored, log_ratios=LOG_RATIOS, correction="decoupled", max_weight=np.inf):
    behaviour = torch.full((len(log_ratios),), -1.5)
    return importance_weight(
        behaviour + torch.tensor(log_ratios),
        behaviour,
        correction=correction,
        max_weight=max_weight,
        scored=scored,
    )


def test_the_weight_of_one_step_counts_for_all_and_stays_between_0_and_2():
    expected = np.clip(1 + 4 * (np.exp(np.minimum(LOG_RATIOS, 20)) - 1), 0, 2)
    assert weights(ONE_OF_4).numpy() == pytest.approx(expected, abs=1e-5)
    assert weights(ONE_OF_4)[0] == 0.0


def test_the_weight_of_a_mean_is_that_of_the_sum_and_at_most_4():
    expected = np.minimum(np.exp(np.minimum(5 * np.array(LOG_RATIOS), 20)), 4)
    assert weights(MEAN_OF_4).numpy() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("scored", "bound"), [(ONE_OF_4, 2.0), (MEAN_OF_4, 4.0)])
def test_a_bound_of_the_user_holds_beside_that_of_the_model(scored, bound):
    assert weights(scored, correction="tis", max_weight=1.25).max() == 1.25
    assert weights(scored, correction="tis", max_weight=50.0).max() == bound
    assert torch.equal(weights(scored, correction="none"), torch.ones(len(LOG_RATIOS)))


def test_what_scores_the_action_is_weighted_as_ever_to_the_bit():
    proximal, behaviour = torch.randn(1000), torch.randn(1000)
    given = {"correction": "decoupled", "max_weight": np.inf}
    expected = torch.exp((proximal - behaviour).clamp(-20, 20))
    for scored in (WHOLE, Scored(steps=1)):
        assert torch.equal(importance_weight(proximal, behaviour, **given, scored=scored), expected)
        measures = weight_measures(expected, proximal, behaviour, **given, scored=scored)
        assert torch.equal(measures["actor/behaviour_kl"], behaviour - proximal)
        assert "actor/behaviour_bounded" not in measures


def test_a_weight_at_lag_0_is_1_whatever_is_scored():
    for scored in (WHOLE, ONE_OF_4, MEAN_OF_4):
        assert weights(scored, [0.0]).item() == 1.0
        assert scored.divergence(torch.zeros(1)).item() == 0.0


def test_there_is_no_chain_without_steps():
    with pytest.raises(ValueError, match="steps=0 must be at least 1"):
        Scored(steps=0)


def draws(size=400_000, seed=0):
    return np.random.default_rng(seed).standard_normal(size)


@pytest.mark.parametrize("steps", [3, 4, 10])
def test_one_noisy_step_of_a_chain_recovers_the_move_of_all_and_the_mean_weight_is_1(steps):
    """Steps add up: each moves by `move` under new weights, one at a time has noise."""
    move, noise = 0.01 / steps, 0.1
    shock = noise * draws()
    action = shock  # the other steps are deterministic, and stay where they were
    log_ratios = (shock**2 - (shock - move) ** 2) / (2 * noise**2)
    weight = Scored(steps=steps).weight(torch.tensor(log_ratios)).numpy()
    assert weight.mean() == pytest.approx(1.0, abs=0.002)
    assert (weight * action).mean() - action.mean() == pytest.approx(steps * move, rel=0.06)
    assert (np.exp(log_ratios) * action).mean() - action.mean() == pytest.approx(move, rel=0.06)


def test_a_chain_of_noisy_steps_recovers_its_move_from_the_mean_of_their_scores():
    steps, move, noise = 4, 0.02, 0.1
    shocks = noise * np.stack([draws(seed=seed) for seed in range(steps)])
    action = shocks.sum(axis=0)
    scores = (shocks**2 - (shocks - move) ** 2).sum(axis=0) / (2 * noise**2)
    weight = MEAN_OF_4.weight(torch.tensor(scores / (steps + 1))).numpy()
    assert (weight * action).mean() - action.mean() == pytest.approx(steps * move, rel=0.05)


@pytest.mark.parametrize("scored", [ONE_OF_4, MEAN_OF_4])
def test_the_divergence_is_that_of_the_action_and_not_of_what_is_scored(scored):
    move, noise = 0.002, 0.1
    if scored.joint:
        shocks = noise * np.stack([draws(seed=seed) for seed in range(4)])
        log_ratios = (shocks**2 - (shocks - move) ** 2).sum(axis=0) / (2 * noise**2) / 5
        expected = 4 * move**2 / (2 * noise**2)
    else:
        shock = noise * draws()
        log_ratios = (shock**2 - (shock - move) ** 2) / (2 * noise**2)
        expected = (4 * move) ** 2 / (2 * noise**2)
    found = scored.divergence(torch.tensor(log_ratios)).mean().item()
    assert found == pytest.approx(expected, rel=0.02)


def test_measures_say_how_far_the_action_is_off_and_how_often_its_weight_is_cut():
    proximal, behaviour = torch.tensor([0.0, 0.3, -0.1]), torch.zeros(3)
    given = {"correction": "decoupled", "max_weight": np.inf, "scored": ONE_OF_4}
    weight = importance_weight(proximal, behaviour, **given)
    measures = weight_measures(weight, proximal, behaviour, **given)
    assert measures["actor/behaviour_bounded"].tolist() == [0.0, 1.0, 0.0]
    expected = 16 * (np.exp(proximal.numpy()) - 1 - proximal.numpy())
    assert measures["actor/behaviour_kl"].numpy() == pytest.approx(expected, abs=1e-5)

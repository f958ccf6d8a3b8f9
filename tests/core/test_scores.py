import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.objectives import importance_weight, weight_measures
from rlinf_async.core.scores import WHOLE, Scored
from rlinf_async.hosts.kit.scoring import joined, pass_size

MODEL = "actor.model.model_type=mlp"


def test_passes_over_parts_are_one_float32_tensor_in_order():
    passes = [{"values": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}, {"values": torch.tensor([3.0])}]
    scores = joined(passes, "values", first=3, model=MODEL)
    assert (scores.tolist(), scores.dtype) == ([1.0, 2.0, 3.0], torch.float32)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_with_their_share_and_the_model(wrong):
    passes = [{"logprobs": torch.tensor([0.0, 1.0])}, {"logprobs": torch.tensor([2.0, wrong])}]
    said = (
        f"{MODEL}: 25% of the logprobs of this batch, scored again before the update, are not finite; nothing"
    )
    with pytest.raises(FloatingPointError, match=re.escape(said)):
        joined(passes, "logprobs", first=4, model=MODEL)


def test_what_is_behind_the_samples_is_not_looked_at():
    passes = [{"logprobs": torch.tensor([0.0, 1.0])}, {"logprobs": torch.tensor([2.0, float("nan")])}]
    assert joined(passes, "logprobs", first=3, model=MODEL).tolist() == [0.0, 1.0, 2.0]


@given(st.integers(1, 300), st.integers(0, 100), st.integers(1, 128))
def test_what_is_behind_the_samples_takes_no_passes_of_its_own(samples, beyond, most):
    size = pass_size(samples, beyond, most=most)
    passes = math.ceil(samples / most)
    assert math.ceil((samples + beyond) / size) <= passes
    # No larger than it has to be for that.
    assert (size - 1) * passes < samples + beyond
    if not beyond:
        assert size <= most


ONE_OF_4 = Scored(steps=4)
MEAN_OF_4 = Scored(steps=4, joint=True)


@pytest.mark.parametrize("scored", [WHOLE, ONE_OF_4, MEAN_OF_4])
def test_weights_are_of_what_is_scored_to_the_bit(scored):
    proximal, behaviour = torch.randn(1000), torch.randn(1000)
    given = {"correction": "decoupled", "max_weight": np.inf, "scored": scored}
    expected = torch.exp((proximal - behaviour).clamp(-20, 20))
    assert torch.equal(importance_weight(proximal, behaviour, **given), expected)
    measures = weight_measures(expected, proximal, behaviour, **given)
    assert torch.equal(measures["actor/behaviour_kl"], behaviour - proximal) == scored.whole
    assert "actor/behaviour_bounded" not in measures


def test_at_lag_0_nothing_is_far():
    for scored in (WHOLE, ONE_OF_4, MEAN_OF_4):
        assert scored.divergence(torch.zeros(1)).item() == 0.0
        assert scored.ratio(torch.zeros(1)).item() == 1.0


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
    weight = Scored(steps=steps).ratio(torch.tensor(log_ratios)).numpy()
    assert weight.mean() == pytest.approx(1.0, abs=0.002)
    assert (weight * action).mean() - action.mean() == pytest.approx(steps * move, rel=0.06)
    assert (np.exp(log_ratios) * action).mean() - action.mean() == pytest.approx(move, rel=0.06)


def test_a_chain_of_noisy_steps_recovers_its_move_from_the_mean_of_their_scores():
    steps, move, noise = 4, 0.02, 0.1
    shocks = noise * np.stack([draws(seed=seed) for seed in range(steps)])
    action = shocks.sum(axis=0)
    scores = (shocks**2 - (shocks - move) ** 2).sum(axis=0) / (2 * noise**2)
    weight = MEAN_OF_4.ratio(torch.tensor(scores / (steps + 1))).numpy()
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


def test_measures_say_how_far_the_action_is_off():
    proximal, behaviour = torch.tensor([0.0, 0.3, -0.1]), torch.zeros(3)
    given = {"correction": "decoupled", "max_weight": np.inf, "scored": ONE_OF_4}
    weight = importance_weight(proximal, behaviour, **given)
    measures = weight_measures(weight, proximal, behaviour, **given)
    expected = 16 * (np.exp(proximal.numpy()) - 1 - proximal.numpy())
    assert measures["actor/behaviour_kl"].numpy() == pytest.approx(expected, abs=1e-5)

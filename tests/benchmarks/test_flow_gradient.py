"""Weights and the gradient of flow-matching policies, against what each step moves the action by."""

import numpy as np
import pytest
import torch

from benchmarks.learning import flow_gradient
from benchmarks.learning.flow_gradient import ADVANTAGES, CRITICS, WEIGHTS, samples, shares
from benchmarks.learning.flow_policy import DENOISE_STEPS


def moved_by_step(number):
    """The move of the action, for a theta of 1 in one step alone, which has noise and a shock of 0."""
    actions = []
    for theta in (0.0, 1.0):
        x = torch.zeros(1, 1, dtype=torch.float64)
        for step in range(DENOISE_STEPS):
            x = flow_gradient._step(x, step, theta if step == number else 0.0, step == number)[0]
        actions.append(float(x))
    return actions[1] - actions[0]


def test_the_gradient_of_a_linear_advantage_is_what_the_steps_move_the_action_by():
    drawn = samples(0.0, 0.0)
    gradient = np.sum(drawn.share * drawn.score * drawn.action)
    assert gradient == pytest.approx(np.mean([moved_by_step(number) for number in range(DENOISE_STEPS)]))


def test_all_steps_together_move_the_action_by_theta():
    before, after = (samples(theta, 0.0) for theta in (0.0, 1.0))
    assert np.sum(after.share * after.action) - np.sum(before.share * before.action) == pytest.approx(1.0)


@pytest.mark.parametrize("critic", CRITICS)
def test_the_ratio_of_the_noisy_step_gives_the_gradient_of_a_linear_advantage_whatever_the_critic(critic):
    by_weight = dict(zip(WEIGHTS, shares(0.1, "linear", critic), strict=True))
    assert by_weight["`w`"] == pytest.approx(1.0, abs=1e-6)
    assert (by_weight["`1 + 4 (w - 1)`"] == pytest.approx(1.0, abs=1e-6)) == (critic == "acting")


def test_the_pages_say_what_is_computed():
    assert flow_gradient.table() in flow_gradient.PAGE.read_text()
    curved = [
        abs(shares(shift, advantage, "present")[1] - 1)
        for shift in flow_gradient.SHIFTS
        for advantage in list(ADVANTAGES)[1:]
    ]
    page = " ".join((flow_gradient.PAGE.parents[2] / "docs" / "learning.md").read_text().split())
    assert f"it is off by {100 * min(curved):.0f} to {100 * max(curved):.0f} %" in page

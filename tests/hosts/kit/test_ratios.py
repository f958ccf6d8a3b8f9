"""Ratios: what they are of, and their level."""

import pytest
import torch

from rlinf_async.core.scores import WHOLE, Scored
from rlinf_async.hosts.kit.ratios import at_ratio_level, scored_in


def test_samples_say_whether_one_step_or_all_of_them_are_scored():
    one = torch.tensor([[2, 2, 2, 2], [2, 2, 2, 2]])
    assert scored_in({"denoise_inds": one, "chains": torch.zeros(2, 5, 3)}) == Scored(steps=4)
    every = torch.arange(4).repeat(2, 1)
    assert scored_in({"denoise_inds": every}) == Scored(steps=4, joint=True)
    # A rollout has them for every decision, StarVLA another name.
    assert scored_in({"gr00t_denoise_inds": every[None]}) == Scored(steps=4, joint=True)


def test_without_denoise_steps_the_action_is_scored():
    assert scored_in({"action": torch.zeros(2, 3), "states": {"denoise_inds": 1}}) is WHOLE
    assert scored_in({}) is WHOLE
    assert scored_in({"denoise_inds": torch.zeros(2, 1, dtype=torch.long)}).whole


def test_log_probabilities_that_are_no_whole_actions_name_what_to_set():
    with pytest.raises(ValueError, match="action_dim=4 of the model does not divide the 6"):
        at_ratio_level(torch.zeros(2, 6), "action", 4)
    assert at_ratio_level(torch.ones(2, 6), "action", 3).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(("level", "shape"), [("token", (2, 1, 1)), ("action", (2, 1)), ("chunk", (2,))])
def test_one_log_probability_of_a_whole_decision_is_one_ratio_at_any_level(level, shape):
    assert at_ratio_level(torch.ones(2), level, 3).shape == shape

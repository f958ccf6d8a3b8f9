import torch

from rlinf_async.core.scored import WHOLE, Scored
from rlinf_async.hosts.kit.scored import scored_in


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

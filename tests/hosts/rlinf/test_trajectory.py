"""What environments have shown, in the forms in which RLinf's versions keep it."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async.hosts.rlinf.trajectory import OUTCOME_FIELDS, EnvStep, Trajectory


def told():
    return {name: torch.full((3, 2), number) for number, name in enumerate(OUTCOME_FIELDS)}


@pytest.mark.parametrize("apart", [True, False])
def test_what_came_of_steps_is_found_beside_the_observation_or_in_its_transition(apart):
    seen = {"obs": {"states": torch.ones(3, 4), "sound": 1}, "final_obs": None}
    outcome = {"transition": SimpleNamespace(**told())} if apart else told()
    step = EnvStep.of(SimpleNamespace(**seen, **outcome))
    assert {name: getattr(step, name)[0, 0].item() for name in OUTCOME_FIELDS} == dict(
        zip(OUTCOME_FIELDS, range(6), strict=True)
    )
    assert step.obs["states"].shape == (3, 4)
    assert step.obs["main_images"] is None
    assert "sound" not in step.obs


@pytest.mark.parametrize(
    ("kind", "last"), [("standard", [False, True, False]), ("always", [True, True, False])]
)
def test_the_value_beyond_the_end_is_added_where_rlinf_adds_it(kind, last):
    ends = {
        "terminations": torch.tensor([[False, True], [False, False], [True, False]]),
        "truncations": torch.tensor([[False, False], [False, True], [False, False]]),
    }
    step = EnvStep(
        obs={}, rewards=torch.zeros(3, 2), dones=ends["terminations"] | ends["truncations"], **ends
    )
    algorithm = OmegaConf.create({"gamma": 0.5, "bootstrap_type": kind})
    found = step.rewards_with(torch.tensor([[2.0], [4.0], [6.0]]), algorithm)
    expected = torch.where(torch.tensor(last), torch.tensor([1.0, 2.0, 3.0]), 0.0)
    assert torch.equal(found, torch.stack([torch.zeros(3), expected], dim=1))
    assert not step.rewards.any()


def test_a_hand_that_acts_before_the_first_decision_changes_nothing():
    trajectory = Trajectory()
    trajectory.correct(torch.ones(3, 4), torch.ones(3, 2, dtype=torch.bool))
    trajectory.decide({"action": torch.zeros(3, 4), "mask": None}, torch.zeros(3, 4), version=2)
    whole = trajectory.whole()
    assert not whole["actions"].any()
    assert whole["versions"].tolist() == [[[2.0], [2.0], [2.0]]]
    assert set(whole["forward_inputs"]) == {"action"}

"""Outputs of environments over several steps; `tests/conformance` has what every host refuses."""

import pytest
import torch

from rlinf_async.hosts.contract import Contract, finite_fields


def observation(**fields):
    return {"states": torch.zeros(2, 3), "task_descriptions": ["press", "push"], **fields}


CHANGES = {
    "a shape": {"states": torch.zeros(2, 4)},
    "a type": {"states": torch.zeros(2, 3, dtype=torch.int64)},
    "a list": {"task_descriptions": ("press", "push")},
    "a length": {"task_descriptions": ["press"]},
    "one field more": {"goal": torch.zeros(2, 1)},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_observation_that_changes_late_is_refused_as_an_early_one(change):
    contract = Contract(0, 2)
    for _ in range(3):
        contract.observation(observation(), "step")
    with pytest.raises(ValueError, match="the environments of shard 0 have given the observation"):
        contract.observation(observation(**change), "step")


def test_every_observation_of_another_precision_gets_that_of_the_first():
    contract = Contract(0, 2)
    contract.observation(observation())
    for _ in range(3):
        later = contract.observation(observation(states=torch.zeros(2, 3, dtype=torch.float64)), "step")
        assert later["states"].dtype is torch.float32


def test_every_observation_is_a_copy():
    contract, shown = Contract(0, 2), observation()
    copies = []
    for number in range(3):
        shown["states"][:] = number
        copies.append(contract.observation(shown, "step")["states"])
    assert [copy[0, 0].item() for copy in copies] == [0, 1, 2]


def test_rebuilt_environments_may_have_other_fields_until_a_rollout_is_complete():
    contract = Contract(0, 2)
    contract.observation(observation(), "step")
    contract.forget()
    contract.observation(observation(goal=torch.zeros(2, 1)), "step")
    contract.prove()
    contract.forget()
    with pytest.raises(ValueError, match="without 'goal'"):
        contract.observation(observation(), "step")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rewards_whose_squares_are_finite_are_so_even_if_the_sum_of_the_squares_is_not(dtype):
    rewards = torch.full((4, 10), 1.5e19, dtype=dtype)
    named = finite_fields({}, rewards)
    assert all(torch.isfinite(value).all() for value in named.values() if value is not None)
    assert not torch.isfinite(rewards.float().square().sum())

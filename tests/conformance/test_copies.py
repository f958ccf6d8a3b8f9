"""What environments have shown stays what it was, on every host, whatever they write where."""

import pytest
import torch

from tests.conformance.environments import (
    InPlaceArrays,
    InPlaceStrided,
    InPlaceTensors,
    Steady,
    WritesIntoActions,
)

IN_PLACE = [InPlaceTensors, InPlaceArrays, InPlaceStrided]


def same(found, expected):
    """Two outputs say the same, field by field; RLinf's policies are shown the fields that it knows."""
    assert torch.equal(found.rewards, expected.rewards.to(found.rewards))
    assert torch.equal(found.ended, expected.ended)
    for one, other in ((found.observation, expected.observation), (found.final, expected.final)):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one["states"], other["states"])
            assert one["task_descriptions"] == other["task_descriptions"]
    assert found.episodes.keys() == expected.episodes.keys()
    for name, value in expected.episodes.items():
        assert torch.equal(found.episodes[name], value), name


def ending(env_cls, decisions):
    return type(env_cls.__name__, (env_cls,), {"ends": decisions})


@pytest.mark.parametrize("env_cls", IN_PLACE)
@pytest.mark.parametrize("ends", [0, 3])
def test_all_of_a_rollout_is_what_it_would_be_of_environments_that_share_nothing(any_host, env_cls, ends):
    with any_host(ending(Steady, ends)) as steady, any_host(ending(env_cls, ends)) as written:
        for found, expected in zip(written.play(3), steady.play(3), strict=True):
            same(found, expected)


@pytest.mark.parametrize("env_cls", IN_PLACE)
def test_arrays_within_mappings_lists_and_tuples_are_copied_too(showing_host, env_cls):
    with showing_host(env_cls) as playing:
        outputs = playing.play()
    for age, output in enumerate(outputs):
        expected = torch.tensor([[4.0 + row, 1.0, age] for row in range(4)])
        assert torch.equal(output.observation["states"], expected)
        picture = output.observation["camera"]["left"]["picture"]
        assert torch.equal(picture[:, :, 0].float(), expected)
        for field in ("hands", "feet"):
            assert torch.equal(torch.stack(list(output.observation[field])), expected)


def test_environments_may_write_into_the_actions_that_they_get(host):
    with host(WritesIntoActions) as playing:
        playing.play()  # the host has looked whether they were its own

"""Numbers and flags may be of any type, in tensors or numpy's arrays, on every host."""

import numpy as np
import pytest
import torch

from tests.conformance.environments import TYPES, Altered, Steady, altered, typed
from tests.conformance.hosts import host_or_skip
from tests.conformance.test_copies import ending, same


def equal(found, expected):
    """As `same`, of numbers of other types."""
    found.observation["states"] = found.observation["states"].float()
    if found.final is not None:
        found.final["states"] = found.final["states"].float()
    found.episodes = {name: value.to(expected.episodes[name]) for name, value in found.episodes.items()}
    same(found, expected)


@pytest.mark.parametrize("how", TYPES)
def test_a_rollout_is_the_same_of_all_types_of_numbers(any_host, how):
    with any_host(ending(Steady, 2)) as steady, any_host(ending(typed(how, TYPES[how]), 2)) as other:
        for found, expected in zip(other.play(2), steady.play(2), strict=True):
            assert isinstance(found.observation["states"], torch.Tensor)
            assert found.rewards.dtype is torch.float32
            equal(found, expected)


def as_lists(given):
    for name in ("rewards", "terminations", "truncations"):
        given[name] = given[name].tolist()


def as_rows(given):
    for name in ("rewards", "terminations", "truncations"):
        given[name] = list(given[name])


def as_pair(given):
    given["info"]["episode"]["return"] = tuple(given["info"]["episode"]["return"].tolist())


def one_for_all(given):
    given["info"]["episode"]["return"] = np.float32(7.0)


@pytest.mark.parametrize("how", [as_lists, as_rows, as_pair])
def test_lists_of_numbers_do_as_well(host, how):
    with host(Steady) as steady, host(altered(how)) as other:
        for found, expected in zip(other.play(), steady.play(), strict=True):
            equal(found, expected)


@pytest.mark.parametrize("name", ["workers", "rlinf"])
def test_a_statistic_without_dimensions_is_that_of_all_environments(name):
    with host_or_skip(name)(altered(one_for_all)) as playing:
        assert playing.play()[-1].episodes["return"].tolist() == [7.0] * 4


def plain(given):
    """Beside fields with an item for each environment, things that are of all of them."""
    numbers = {"height": 1.5, "time": np.float64(2), "table": torch.tensor(3), "floor": np.array(4)}
    given["observation"] |= {**numbers, "scene": "kitchen", "wrist": None, "on": True}


def test_what_has_no_item_for_each_environment_is_shown_as_it_is(showing_host):
    with showing_host(altered(plain, since=0)) as playing:
        for output in playing.play():
            shown = output.observation
            assert (shown["height"], shown["time"], shown["scene"]) == (1.5, 2.0, "kitchen")
            assert (int(shown["table"]), int(shown["floor"])) == (3, 4)
            assert (shown["wrist"], shown["on"]) == (None, True)


def texts(given):
    given["observation"]["task_descriptions"] = np.array(given["observation"]["task_descriptions"])


def test_an_array_of_texts_is_a_list_of_them(host):
    with host(altered(texts, since=0)) as playing:
        assert all(output.observation["task_descriptions"] == ["go"] * 4 for output in playing.play())


class NoInformation(Altered):
    alter = staticmethod(lambda given: given.update(info=None))
    since = 0


def test_information_may_be_missing(showing_host):
    with showing_host(NoInformation) as playing:
        assert all(output.episodes == {} for output in playing.play())


def sometimes_whole(given):
    """A number of all environments that is written in several ways."""
    age = int(given["observation"]["states"][0, 2])
    written = [1.5, np.float64(1.5), np.float32(1.5), torch.tensor(1.5), np.array(1.5)]
    given["observation"]["height"] = written[age]


def test_a_number_may_be_written_in_several_ways(showing_host):
    with showing_host(altered(sometimes_whole, since=0)) as playing:
        assert [float(output.observation["height"]) for output in playing.play()] == [1.5] * 5


def tells_at_the_reset(given):
    """What nobody reads there."""
    if "rewards" not in given:
        given["info"] |= {"episode": "none yet", "final_info": 3}


def test_what_a_reset_tells_and_nobody_reads_may_be_anything(host):
    with host(altered(tells_at_the_reset, since=0)) as playing:
        assert len(playing.play(2)) == 10

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_async.lab.demo.simulators.metaworld_expert import Demonstrations, demonstrate
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats
from rlinf_async.lab.demo.warm_start import ClonedPolicy, Trial, warm_start
from rlinf_async.lab.demo.warm_start_settings import WarmStart

QUICK = WarmStart(demonstrations=2, max_epochs=2, episodes=16)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return warm_start(QUICK, tmp_path_factory.mktemp("warm"))


def test_the_state_dict_loads_strictly_into_rlinfs_policy(start):
    module = pytest.importorskip(
        "rlinf.models.embodiment.mlp_policy.mlp_policy", reason="RLinf is not installed"
    )
    policy = module.MLPPolicy(39, 4, num_action_chunks=1, add_value_head=True, add_q_head=False)
    state = torch.load(start.policy_path)
    policy.load_state_dict(state)
    states = torch.randn(3, 39)
    ours = ClonedPolicy(QUICK.log_std)
    ours.load_state_dict(state)
    theirs, _ = policy.predict_action_batch({"states": states}, mode="eval")
    assert torch.allclose(theirs[:, 0], ours(states), atol=1e-6)
    assert torch.equal(policy.actor_logstd, torch.full((1, 4), -1.0))


def test_statistics_are_those_of_the_39_d_state(start):
    assert ObservationStats.load(start.obs_stats_path).mean.shape == (39,)


def test_an_equal_call_finds_the_start_again(start, monkeypatch):
    monkeypatch.setattr("rlinf_async.lab.demo.warm_start.demonstrate", pytest.fail)
    assert warm_start(QUICK, start.policy_path.parents[1]) == start


@pytest.mark.parametrize("text", ["{", "[]", '{"success": "high", "seconds": 1}', '{"success": 1}'])
def test_a_start_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / QUICK.key).mkdir()
    (tmp_path / QUICK.key / "summary.json").write_text(text)
    with pytest.raises(ValueError, match=f"{QUICK.key} holds no warm start that can be read; remove it"):
        warm_start(QUICK, tmp_path)


def test_the_start_of_the_package_solves_what_it_is_said_to_solve(tmp_path):
    found = warm_start(WarmStart(), tmp_path)
    assert WarmStart().lowest_success <= found.success <= WarmStart().highest_success
    state = torch.load(found.policy_path, weights_only=True)
    trial = Trial(WarmStart(), ObservationStats.load(found.obs_stats_path))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            solved = trial.success(state, enough=0.0)
    finally:
        trial.close()
    # 64 episodes of a policy that solves 14 % solve 2 to 30 % but for one time in a thousand.
    assert 0.02 <= solved <= 0.3


def test_other_settings_are_another_start():
    assert QUICK.key != replace(QUICK, seed=1).key
    assert QUICK.key == replace(QUICK).key


class Ladder:
    """A trial in which a policy's success is the value of its only parameter."""

    def success(self, state, *, enough):
        return float(state["weight"])


def climb(*successes, **changes):
    from rlinf_async.lab.demo.warm_start import search

    epochs = iter([{"weight": torch.tensor(value)} for value in successes])
    settings = replace(QUICK, lowest_success=0.10, highest_success=0.20, **changes)
    return search(settings, epochs, Ladder()).success


def test_cloning_stops_at_the_first_epoch_in_the_band():
    assert climb(0.0, 0.05, 0.15, 0.9) == pytest.approx(0.15)


def test_an_epoch_that_overshoots_is_mixed_with_the_one_before_it():
    assert 0.10 <= climb(0.0, 0.05, 0.9) <= 0.20


def test_the_best_epoch_is_kept_when_none_is_good_enough():
    assert climb(0.0, 0.06, 0.03) == pytest.approx(0.06)


def test_a_trial_repeats_for_equal_weights_and_noise(start):
    trial = Trial(QUICK, ObservationStats.load(start.obs_stats_path))
    state = torch.load(start.policy_path)
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        results.append(trial.success(state, enough=0.0))
    trial.close()
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task_name": "nothing-v3"}, "nothing-v3"),
        ({"demonstrations": 0}, "demonstrations"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"lowest_success": 0.5, "highest_success": 0.2}, "lowest_success=0.5"),
        ({"episodes": 20}, "20"),
    ],
)
def test_impossible_settings_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        WarmStart(**changes)


def test_a_chunk_is_what_followed_in_the_same_episode():
    steps, size, every = 12, 3, 2
    numbers = np.arange(2 * steps, dtype=np.float32)[:, None]
    states, chunks = Demonstrations(numbers, 100 + numbers, steps).chunks(size, every=every)
    expected = [
        (first, [100 + first + every * index for index in range(size)])
        for episode in range(2)
        for first in range(steps * episode, steps * (episode + 1) - every * (size - 1))
    ]
    assert [(state[0], chunk[:, 0].tolist()) for state, chunk in zip(states, chunks, strict=True)] == expected


def test_one_action_at_a_time_is_cloned_from_every_sample():
    shown = demonstrate(QUICK.task_name, episodes=2, steps=5, seed=0)
    states, actions = shown.chunks(1)
    assert np.array_equal(states, shown.states)
    assert np.array_equal(actions[:, 0], shown.actions)

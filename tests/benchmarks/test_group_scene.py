"""The experiment on scenes of a group: nobody looks before its end, and each of its verdicts can come out."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning import group_scene
from benchmarks.learning.group_scene import (
    ARMS,
    BATCH_COUNT,
    ENV_COUNT,
    FIRST_BATCHES,
    GROUP_SIZE,
    MIDDLE_M,
    SEEDS,
    UNIT_M,
    Reaching,
    missing,
    run,
    verdict,
)
from rlinf_async.hosts.rlinf.episode_starts import Stages


def rows(shared, *, apart=0.1, spread=0.001):
    """Rows of all planned runs in which the arms learn so much, by seed a little more or less."""
    found = []
    for seed, arm in missing([]):
        sign = 1 if arm == "shared" else -1
        gain = (apart if arm == "apart" else shared) + sign * spread * (seed % 3 - 1)
        returns = [-1.0] * FIRST_BATCHES + [-1.0 + gain] * (BATCH_COUNT - FIRST_BATCHES)
        found.append({"arm": arm, "seed": seed, "returns": returns, "unseen": -2.0})
    return found


def test_nothing_is_computed_before_the_last_run():
    every = rows(0.1)
    assert len(every) == len(SEEDS) * len(ARMS) == 20
    assert verdict(every[:-1]) == "19 of 20 runs: no result yet"
    assert list(missing(every[:-1])) == [(every[-1]["seed"], every[-1]["arm"])]


@pytest.mark.parametrize(
    ("shared", "spread", "word"),
    [
        (0.1, 0.001, "equivalent"),
        (0.2, 0.001, "better"),
        (0.05, 0.001, "worse"),
        (0.09, 0.02, "open"),
    ],
)
def test_each_verdict_is_that_of_the_plan(shared, spread, word):
    assert verdict(rows(shared, spread=spread)).startswith(f"{word}: ")


def test_without_learning_there_is_no_result():
    assert verdict(rows(0.1, apart=0.0)).startswith("no result: `apart` has not learned")


class Standing:
    """In place of a simulator: its goal is drawn from the seed of its scene; actions are ways in metres."""

    initial_states = tuple(range(50))

    def stand_in(self, seed):
        self.seed, self.goal = seed, np.random.default_rng(seed).normal(size=3)

    def begin(self, state):
        self.state, self.place = state, np.zeros(3)
        return self.place

    def move(self, action):
        self.place = self.place + action
        return self.place


def test_arms_differ_in_the_scenes_of_all_members_but_the_first():
    simulators = {arm: [Standing() for _ in range(ENV_COUNT)] for arm in ARMS}
    for arm, each in simulators.items():
        scenes = Stages(count=1, size=ENV_COUNT, seed=200, shared_scene=ARMS[arm]).scene_seeds(0, GROUP_SIZE)
        Reaching(each, scenes, seed=200).begin()
    apart, shared = simulators["apart"], simulators["shared"]
    assert [each.seed for each in apart] == list(range(1600, 1608))
    assert [each.seed for each in shared] == [1600] * 4 + [1604] * 4
    states = [each.state for each in apart]
    assert states == [each.state for each in shared] == [states[0]] * 4 + [states[4]] * 4
    assert states[0] != states[4]


def test_the_reward_is_the_way_that_is_left_and_the_policy_sees_both_ends_of_it():
    simulators = [Standing() for _ in range(ENV_COUNT)]
    environments = Reaching(simulators, range(ENV_COUNT), seed=0)
    environments.begin()
    actions = np.full((ENV_COUNT, 3), 0.25)
    states, rewards, ended = environments.decide(actions)
    ways = [np.linalg.norm(each.goal - 0.25) for each in simulators]
    np.testing.assert_allclose(rewards, np.negative(ways), rtol=1e-6)
    np.testing.assert_allclose(states[:, :3] * UNIT_M + MIDDLE_M, actions, atol=1e-6)
    np.testing.assert_allclose(
        states[:, 3:] * UNIT_M + MIDDLE_M, [each.goal for each in simulators], atol=1e-6
    )
    assert not ended.any()


def test_a_run_trains_by_grpo_on_all_environments():
    row = run([Standing() for _ in range(ENV_COUNT)], "apart", 200, batches=2)
    assert (row["arm"], row["seed"], len(row["returns"])) == ("apart", 200, 2)
    again = run([Standing() for _ in range(ENV_COUNT)], "apart", 200, batches=2)
    assert (row["returns"], row["unseen"]) == (again["returns"], again["unseen"])
    shared = run([Standing() for _ in range(ENV_COUNT)], "shared", 200, batches=2)
    assert shared["returns"] != row["returns"]


def test_pages_say_what_the_rows_say(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["group_scene", "--report"])
    group_scene.main()
    said = capsys.readouterr().out
    assert said == (
        "equivalent: shared - apart +1.0% of what apart learned, 95 % [-0.5%, +2.4%]\n"
        "return in unseen scenes: apart -2.231 m, shared -2.216 m\n"
    )
    root = Path(__file__).parents[2]
    for page in ("docs/choosing.md", "benchmarks/learning/README.md"):
        assert "+1.0 % [-0.5 %, +2.4 %]" in (root / page).read_text()

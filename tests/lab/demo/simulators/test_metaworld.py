import gc
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest

from rlinf_async.core.failures import SimulatorDied
from rlinf_async.lab.demo.simulators import metaworld_task
from rlinf_async.lab.demo.simulators.camera import Camera, RenderSettings, installed_backend
from rlinf_async.lab.demo.simulators.child_process import ChildProcess
from rlinf_async.lab.demo.simulators.metaworld import MetaWorldBatch
from rlinf_async.lab.demo.simulators.metaworld_expert import demonstrate
from rlinf_async.lab.demo.simulators.metaworld_task import MetaWorldShard, TaskSettings, simulator
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats

TASK = "button-press-topdown-v3"
SHORT = TaskSettings(TASK, max_episode_steps=3)

needs_gl = pytest.mark.skipif(installed_backend() is None, reason="no EGL or OSMesa library")


def actions(envs, decisions=1, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (envs, decisions, 4))


@pytest.fixture
def batch():
    opened = []

    def build(settings=SHORT, num_envs=4, **options):
        opened.append(MetaWorldBatch(settings, num_envs, **options))
        return opened[-1]

    yield build
    for simulators in opened:
        simulators.close()


def test_members_of_a_group_share_their_goal_and_groups_do_not(batch):
    simulators = batch(num_envs=4, group_size=2)
    for _ in range(2):
        states = simulators.reset().states
        assert np.array_equal(states[0], states[1])
        assert np.array_equal(states[2], states[3])
        assert not np.array_equal(states[0, 36:], states[2, 36:])


def test_a_member_that_resets_later_still_meets_its_groups_next_goal(batch):
    simulators = batch(num_envs=2, group_size=2)
    simulators.reset()
    first = simulators.reset(np.array([0])).states[0]
    second = simulators.reset(np.array([1])).states[1]
    assert np.array_equal(first, second)


def test_each_reset_draws_a_new_goal_until_rewound(batch):
    simulators = batch(num_envs=1)
    first, second = simulators.reset().states, simulators.reset().states
    assert not np.array_equal(first[:, 36:], second[:, 36:])
    simulators.rewind()
    assert np.array_equal(simulators.reset().states, first)


def test_a_reset_leaves_the_other_environments_alone(batch):
    simulators = batch(num_envs=3)
    simulators.reset()
    before = simulators.step(actions(3)).observation.states
    after = simulators.reset(np.array([1])).states
    assert np.array_equal(before[[0, 2]], after[[0, 2]])
    assert not np.array_equal(before[1], after[1])


def test_child_processes_play_exactly_what_the_calling_thread_plays(batch):
    here, there = batch(num_envs=4), batch(num_envs=4, processes=2)
    assert np.array_equal(here.reset().states, there.reset().states)
    ours, theirs = here.step(actions(4, 2)), there.step(actions(4, 2))
    assert np.array_equal(ours.observation.states, theirs.observation.states)
    assert np.array_equal(ours.rewards, theirs.rewards)


def test_a_child_ends_when_its_pipe_closes_and_leaves_no_orphan(batch):
    simulators = batch(num_envs=2, processes=1)
    simulators.reset()
    (pid,) = simulators.pids
    simulators.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_is_closed_holds_no_simulators_even_if_it_is_held_itself(monkeypatch):
    built = []

    def remembered(task, render):
        env = simulator(task, render)
        built.append(weakref.ref(env))
        return env

    monkeypatch.setattr(metaworld_task, "simulator", remembered)
    shard = MetaWorldShard(SHORT, 2, None)
    gc.collect()
    assert [ref() is None for ref in built] == [False, False]
    shard.close()
    gc.collect()
    assert [ref() is None for ref in built] == [True, True]


def test_a_dead_child_is_reported_and_not_waited_for(batch):
    simulators = batch(num_envs=2, processes=1)
    simulators.reset()
    os.kill(simulators.pids[0], signal.SIGKILL)
    with pytest.raises(SimulatorDied, match=f"process {simulators.pids[0]} was killed by signal 9"):
        simulators.step(actions(2))


def test_only_children_that_owe_an_answer_are_ended(batch):
    simulators = batch(num_envs=2, processes=2)
    simulators.reset()
    assert not simulators.abort("nobody waits")
    os.kill(simulators.pids[0], signal.SIGSTOP)
    simulators._shards[0].submit("step", actions(1))
    assert simulators.abort("no answer for 3 s")
    with pytest.raises(SimulatorDied, match=f"process {simulators.pids[0]} was ended: no answer for 3 s"):
        simulators._shards[0].result()
    simulators._shards[1].submit("step", actions(1))
    assert simulators._shards[1].result()


def test_skipped_episodes_are_never_begun(batch):
    here, there = batch(num_envs=2), batch(num_envs=2)
    here.reset()
    there.skip(1)
    assert np.array_equal(here.reset().states, there.reset().states)


def test_simulators_of_the_calling_thread_cannot_be_ended(batch):
    assert not batch(num_envs=1).abort("no answer for 3 s")


def test_an_error_inside_a_child_is_raised_by_the_caller(batch):
    simulators = batch(num_envs=2, processes=1)
    simulators.reset()
    simulators._shards[0].submit("reset", np.array([7]), np.array([0]))
    with pytest.raises(IndexError):
        simulators._shards[0].result()


def test_an_error_while_a_child_builds_its_simulators_is_raised_too():
    child = ChildProcess("rlinf_async.lab.demo.simulators.metaworld_task:TaskSettings", "no-such-v3")
    child.submit("anything")
    with pytest.raises(ValueError, match="no-such-v3"):
        child.result()
    child.close()


def test_seeds_keep_streams_apart(batch):
    train, evaluation = batch(num_envs=1, seed=(5, 0)), batch(num_envs=1, seed=(5, 1))
    assert not np.array_equal(train.reset().states, evaluation.reset().states)


def test_an_episode_is_truncated_at_its_horizon_and_then_stands_still(batch):
    simulators = batch(num_envs=2)
    simulators.reset()
    step = simulators.step(actions(2, decisions=5))
    assert step.truncations.tolist() == [[False, False, True, True, True]] * 2
    assert step.lengths.tolist() == [3, 3]
    again = simulators.step(actions(2))
    assert np.array_equal(step.observation.states, again.observation.states)
    assert again.rewards.sum() == 0


class Scripted:
    """A simulator that reports success on the given simulator steps, with a dense reward of 4."""

    def __init__(self, successes):
        self.successes = list(successes)

    def seed(self, seed):
        pass

    def reset(self):
        return np.zeros(39), {}

    def step(self, action):
        return np.ones(39), 4.0, False, False, {"success": float(self.successes.pop(0))}


def play(settings, successes, monkeypatch):
    monkeypatch.setattr(
        "rlinf_async.lab.demo.simulators.metaworld_task.simulator", lambda *_: Scripted(successes)
    )
    shard = MetaWorldShard(settings, 1, None)
    shard.reset(np.array([0]), np.array([0]))
    _, _, rewards, solved, _, lengths = shard.step(actions(1, settings.max_episode_steps))
    return rewards[0].tolist(), solved[0].tolist(), lengths[0]


def test_the_sparse_reward_is_paid_once_and_success_ends_the_episode(monkeypatch):
    settings = TaskSettings(TASK, max_episode_steps=4, action_repeat=2, reward_scale=3.0)
    rewards, solved, length = play(settings, [0, 0, 0, 1, 1, 1, 1, 1], monkeypatch)
    assert rewards == [0, 3, 0, 0]
    assert solved == [False, True, True, True]
    assert length == 2


def test_the_sparse_reward_is_paid_once_even_if_the_episode_goes_on(monkeypatch):
    settings = TaskSettings(TASK, max_episode_steps=3, action_repeat=1, end_at_success=False)
    rewards, solved, length = play(settings, [1, 0, 1], monkeypatch)
    assert rewards == [1, 0, 0]
    assert solved == [True, False, True]
    assert length == 3


def test_the_dense_reward_is_the_mean_over_the_repeats_times_the_scale(monkeypatch):
    settings = TaskSettings(TASK, max_episode_steps=1, action_repeat=2, reward="dense", reward_scale=0.1)
    rewards, _, _ = play(settings, [0, 0], monkeypatch)
    assert rewards == [pytest.approx(0.4)]


def test_the_bundled_expert_solves_the_task_under_the_batch_rules(batch):
    from metaworld.policies import ENV_POLICY_MAP

    simulators = batch(TaskSettings(TASK, max_episode_steps=100, action_repeat=1), num_envs=2)
    expert, observation = ENV_POLICY_MAP[TASK](), simulators.reset()
    for _ in range(100):
        chosen = np.array([expert.get_action(state) for state in observation.states])
        step = simulators.step(chosen[:, None])
        observation = step.observation
    assert step.successes.all()


def test_demonstrations_repeat_for_a_seed_and_stay_within_the_action_range():
    first, again = (demonstrate(TASK, episodes=2, steps=5, seed=3) for _ in range(2))
    assert first.states.shape == (10, 39)
    assert np.array_equal(first.states, again.states)
    assert np.abs(first.actions).max() <= 1


def test_statistics_normalise_and_survive_a_file(tmp_path):
    states = np.random.default_rng(0).normal(3.0, 2.0, (500, 39))
    stats = ObservationStats.of(states)
    stats.save(tmp_path / "stats.npz")
    loaded = ObservationStats.load(tmp_path / "stats.npz")
    assert np.allclose(loaded.normalise(states).mean(axis=0), 0, atol=1e-3)
    assert np.allclose(loaded.normalise(states).std(axis=0), 1, atol=1e-3)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: TaskSettings("no-such-v3"), "no-such-v3"),
        (lambda: TaskSettings(TASK, max_episode_steps=0), "max_episode_steps=0"),
        (lambda: TaskSettings(TASK, reward="shaped"), "shaped"),
        (lambda: MetaWorldBatch(SHORT, 3, group_size=2), "group_size=2"),
        (lambda: MetaWorldBatch(SHORT, 3, processes=2), "processes=2"),
        (lambda: RenderSettings(size=8), "8"),
        (lambda: RenderSettings(backend="glfw"), "glfw"),
    ],
)
def test_impossible_settings_are_named(build, words):
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.render
@needs_gl
def test_pictures_have_the_asked_size_and_follow_the_simulation(batch):
    simulators = batch(num_envs=2, render=RenderSettings(size=64))
    before = simulators.reset().images
    after = simulators.step(actions(2, 3)).observation.images
    assert before.shape == (2, 64, 64, 3)
    assert before.dtype == np.uint8
    assert (before != after).any(axis=(1, 2, 3)).all()
    assert (before[0] != before[1]).any()


@pytest.mark.render
@needs_gl
def test_one_camera_serves_every_simulator_of_the_task():
    settings = RenderSettings(size=64)
    one, other = simulator(TASK, settings), simulator(TASK, settings)
    for env in (one, other):
        env.seed(1)
        env.reset()
    camera = Camera(one.model, settings)
    pictures = camera.picture(one.data), camera.picture(other.data)
    camera.close()
    assert np.array_equal(*pictures)


PARENT = """
from rlinf_async.lab.demo.simulators.child_process import ChildProcess
from rlinf_async.lab.demo.simulators.metaworld import MetaWorldBatch
from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings

simulators = MetaWorldBatch(TaskSettings("reach-v3"), 2, processes=2)
simulators.reset()
import sys
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_killing_the_parent_ends_its_children():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    # The children hold the same standard output: it ends when the last of them is gone.
    assert parent.stdout.read() == ""
    parent.stdin.close()
    assert parent.wait() == -signal.SIGKILL


@pytest.mark.parametrize("group_size", [1, 2])
def test_an_environment_has_the_same_episodes_in_whatever_batch_it_is(batch, group_size):
    whole = batch(num_envs=4, group_size=group_size)
    halves = [batch(num_envs=2, first=first, group_size=group_size) for first in (0, 2)]
    for _ in range(2):
        together = whole.reset().states
        apart = np.concatenate([half.reset().states for half in halves])
        assert np.array_equal(together, apart)
        assert len(np.unique(together, axis=0)) == 4 // group_size


def test_a_batch_that_begins_inside_a_group_is_refused():
    with pytest.raises(ValueError, match="first=3 must be a multiple of group_size=2"):
        MetaWorldBatch(SHORT, 2, first=3, group_size=2)

"""ManiSkill's environments in threads of one process begin as their seed says."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace

import pytest
import torch

from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.episode_starts import with_own_chance
from rlinf_async.lab.demo.simulators.vulkan import DRIVERS_VARIABLE, SOFTWARE_DRIVER
from tests.hosts.rlinf.workers import SHARDS as STAGES
from tests.hosts.rlinf.workers import Walks, config, in_one_process, with_walks

SHARDS, ROUNDS = 8, 10
CONFIG = SimpleNamespace(seed=5)


class Reaching:
    """Draws its goals as ManiSkill does; two that reset at one moment meet between seeding and drawing."""

    meeting = Barrier(2)

    def __init__(self, cfg, num_envs, seed_offset):
        self.seed = cfg.seed + seed_offset

    def reset(self, *, options=None):
        if options is not None:
            return self._draw()
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self._draw()

    def _draw(self):
        try:
            self.meeting.wait(0.05)
        except BrokenBarrierError:
            self.meeting.reset()
        return torch.rand(3).tolist()


def starts(env_cls, offsets):
    """The goals of three resets of each, all in threads of their own: one by the seed, two without."""

    def play(offset):
        env = env_cls(CONFIG, 1, offset)
        return [env.reset(), env.reset(options={}), env.reset(options={})]

    with ThreadPoolExecutor(len(offsets)) as pool:
        return list(pool.map(play, offsets))


def test_environments_in_threads_begin_as_they_begin_alone():
    own = with_own_chance(Reaching, env_type="maniskill", several=True)
    together = starts(own, range(4))
    assert together == [starts(own, [offset])[0] for offset in range(4)]
    # Starts by the seed are those of RLinf's class, and no two environments begin alike.
    assert [first for first, *_ in together] == [starts(Reaching, [offset])[0][0] for offset in range(4)]
    assert len({tuple(goal) for goals in together for goal in goals[1:]}) == 8


def test_the_process_draws_as_if_nothing_had_been_reset():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    starts(with_own_chance(Reaching, env_type="maniskill", several=True), range(2))
    assert torch.equal(torch.rand(2), expected)


def test_one_environment_in_a_process_draws_as_rlinfs_own():
    torch.manual_seed(1)
    expected = starts(Reaching, [0])
    torch.manual_seed(1)
    assert starts(with_own_chance(Reaching, env_type="maniskill", several=False), [0]) == expected


def test_other_environments_stay_as_they_are():
    assert with_own_chance(Reaching, env_type="libero", several=True) is Reaching


class Meeting(Walks):
    """Environments whose resets wait for one of another shard, and count how many go on at once."""

    moment = Barrier(2)
    going_on = most = 0

    def reset(self, **options):
        Meeting.going_on += 1
        Meeting.most = max(Meeting.most, Meeting.going_on)
        try:
            self.moment.wait(0.05)
        except BrokenBarrierError:
            self.moment.reset()
        Meeting.going_on -= 1
        return super().reset(**options)


@pytest.mark.parametrize(("simulator", "most"), [("maniskill", 1), ("metaworld", 2)])
def test_shards_of_an_env_worker_reset_one_by_one_where_they_draw_from_one_generator(
    simulator, most, monkeypatch
):
    cfg = config(f"rollout.pipeline_stage_num={STAGES}", "async.skip.frames=false")
    cfg.env.train.env_type = simulator
    monkeypatch.setattr(Meeting, "most", 0)
    with in_one_process(), ThreadPoolExecutor(2) as pool:
        first, second, *_ = with_walks(ShardedEnvWorker(cfg), Meeting).env_list
        for _ in range(5):
            list(pool.map(lambda env: env.reset(), (first, second)))
    assert Meeting.most == most


IN_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from omegaconf import OmegaConf
from rlinf.envs.maniskill.maniskill_env import ManiskillEnv
from rlinf_async.hosts.rlinf.episode_starts import with_own_chance

shards, rounds = map(int, sys.argv[1:])
init = dict(id="PickCube-v1", obs_mode="state", control_mode="pd_joint_delta_pos", sim_backend="cpu")
cfg = OmegaConf.create(dict(
    seed=0, auto_reset=True, use_rel_reward=False, ignore_terminations=False, group_size=1,
    use_fixed_reset_state_ids=False, wrap_obs_mode="simple", reward_mode="raw", video_cfg={},
    init_params=dict(init, render_backend="none", max_episode_steps=5),
))
cls = with_own_chance(ManiskillEnv, env_type="maniskill", several=True)
envs = [cls(cfg, 1, offset, shards, None) for offset in range(shards)]
alone = [env.reset()[0]["states"].tolist() for env in envs]
moment = Barrier(shards)

def again(env):
    moment.wait()
    return env.reset()[0]["states"].tolist()

with ThreadPoolExecutor(shards) as pool:
    wrong = sum(one != own for _ in range(rounds) for one, own in zip(pool.map(again, envs), alone))
print("wrong:", wrong, "of", shards * rounds, "different:", len({str(state) for state in alone}))
"""


@pytest.mark.maniskill
def test_eight_shards_of_maniskill_begin_as_their_seed_says():
    pytest.importorskip("mani_skill", reason="ManiSkill is not installed (see the `maniskill` extra)")
    pytest.importorskip("rlinf", reason="it is RLinf's environment")
    if not SOFTWARE_DRIVER.is_file():
        pytest.skip(f"no software Vulkan driver at {SOFTWARE_DRIVER}")
    environ = {DRIVERS_VARIABLE: str(SOFTWARE_DRIVER), **os.environ}
    command = [sys.executable, "-c", IN_THREADS, str(SHARDS), str(ROUNDS)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"wrong: 0 of {SHARDS * ROUNDS} different: {SHARDS}" in done.stdout

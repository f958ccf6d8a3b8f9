"""Shards of RLinf's LIBERO show the tasks and scenes of RLinf's own loop, whichever shard plays a place."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.rlinf.episode_starts import Stages, with_stock_scenes
from rlinf_async.hosts.rlinf.exactness import scene_reasons
from tests.libero_assets import ASSETS, needs_assets, needs_libero, rendering

ROOT = Path(__file__).parents[3]
SECTION = {"env_type": "libero", "auto_reset": False}
STATES = 50


class LiberoLike:
    """Draws tasks and seeds simulators in RLinf's order, and has no simulators."""

    def __init__(self, *, seed, seed_offset, total, num_envs, group_size, fixed):
        self.seed_offset, self.total_num_processes, self.seed = seed_offset, total, seed + seed_offset
        self.num_envs, self.group_size, self.num_group = num_envs, group_size, num_envs // group_size
        self.use_fixed_reset_state_ids, self._is_start = fixed, True
        self._generator = np.random.default_rng(seed=self.seed)
        self._generator_ordered = np.random.default_rng(seed=0)
        self.reset_state_ids_all = self.get_reset_state_ids_all()
        self.update_reset_state_ids()
        self._init_env()

    def _init_env(self):
        self.env = SimpleNamespace(seed=self._seeded)

    def _seeded(self, seed):
        self.seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed

    def get_reset_state_ids_all(self):
        ids = np.arange(STATES)
        self._generator_ordered.shuffle(ids)
        return ids

    def _get_random_reset_state_ids(self, number):
        return self._generator.integers(low=0, high=STATES, size=(number,))

    def update_reset_state_ids(self):
        self.reset_state_ids = self._get_random_reset_state_ids(self.num_group).repeat(self.group_size)

    def reset(self, env_idx=None, reset_state_ids=None):
        numbers = np.arange(self.num_envs) if env_idx is None else env_idx
        if self._is_start:
            reset_state_ids = self.reset_state_ids if self.use_fixed_reset_state_ids else None
            self._is_start = False
        if reset_state_ids is None:
            reset_state_ids = self._get_random_reset_state_ids(len(numbers))
        self.env.seed(self.seed * len(numbers))
        return list(zip(reset_state_ids.tolist(), self.seeds, strict=True))


def rollouts(env, number):
    return [rollout(env) for _ in range(number)]


def rollout(env):
    env._is_start = True
    shown = env.reset()
    env.update_reset_state_ids()
    return shown


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("shard_size", [2, 4, 8])
def test_a_shard_starts_what_the_stage_of_rlinf_starts_at_its_place(fixed, shard_size):
    stage_size, count, seed = 8, 3, 11
    sizes = {"group_size": 2, "fixed": fixed, "seed": seed}
    stages = [
        rollouts(LiberoLike(seed_offset=n, total=count, num_envs=stage_size, **sizes), 4)
        for n in range(count)
    ]
    stock = [[start for stage in stages for start in stage[number]] for number in range(4)]
    env_cls = with_stock_scenes(LiberoLike, SECTION, Stages(count=count, size=stage_size, seed=seed))
    shards = count * stage_size // shard_size
    for place in range(shards):
        # The number of the shard, the seed of its life, and the order of rollouts do not matter.
        env = env_cls(
            seed_offset=(place + 1) % shards,
            total=shards,
            num_envs=shard_size,
            **{**sizes, "seed": seed + 7919},
        )
        for number in (0, 1, 3, 2):
            env.stand_at(place, number)
            first = place * shard_size
            assert rollout(env) == stock[number][first : first + shard_size]


def test_a_shared_scene_has_the_seed_of_the_first_member_of_its_group():
    own = Stages(count=2, size=6, seed=5)
    assert own.scene_seeds(1, 3) == [36, 37, 38, 39, 40, 41]
    assert Stages(count=2, size=6, seed=5, shared_scene=True).scene_seeds(1, 3) == [36, 36, 36, 39, 39, 39]


def test_environments_that_were_told_no_place_draw_for_themselves():
    sizes = {"seed": 3, "seed_offset": 1, "total": 2, "num_envs": 4, "group_size": 2, "fixed": True}
    env_cls = with_stock_scenes(LiberoLike, SECTION, Stages(count=1, size=8, seed=3))
    assert rollouts(env_cls(**sizes), 3) == rollouts(LiberoLike(**sizes), 3)


@pytest.mark.parametrize(
    "section",
    [
        {**SECTION, "env_type": "metaworld"},
        {**SECTION, "env_class": "points"},
        {**SECTION, "auto_reset": True},
    ],
)
def test_other_environments_keep_their_class(section):
    assert with_stock_scenes(LiberoLike, section, Stages(count=1, size=8, seed=3)) is LiberoLike


@pytest.mark.parametrize(("env_type", "auto_reset"), product(("libero", "metaworld"), (False, True)))
def test_a_shared_scene_is_refused_where_there_is_none(env_type, auto_reset):
    asynchrony = AsyncConfig.from_mapping({"mode": "full", "advanced": {"shared_group_scene": True}})
    cfg = {"env": {"train": {"env_type": env_type, "auto_reset": auto_reset}}}
    reasons = [reason.text for reason in scene_reasons(cfg["env"]["train"], asynchrony)]
    served = env_type == "libero" and not auto_reset
    assert len(reasons) == (0 if served else 1)
    assert served or f"env.train.env_type={env_type}" in reasons[0]
    assert not list(scene_reasons(cfg["env"]["train"], AsyncConfig.from_mapping({"mode": "full"})))


@pytest.mark.libero
@pytest.mark.timeout(1000)
@needs_libero
@needs_assets
def test_pictures_and_states_of_real_simulators_are_those_of_their_place(tmp_path):
    environment = {**os.environ, **rendering(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.hosts.rlinf.libero_scenes", str(ASSETS), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    first, second, *others = found["stock"]
    assert found["taking on"] == others
    assert first != second, "members of a group of RLinf's stand before other scenes"
    assert found["sharing"] == [first, first]

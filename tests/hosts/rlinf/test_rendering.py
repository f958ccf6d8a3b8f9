"""Simulators of RLinf's own Meta-World, which are not started here, render on the GPU of their env worker."""

import os
from types import SimpleNamespace

import gymnasium
import pytest

pytest.importorskip("metaworld", reason="Meta-World is not installed")

from rlinf.envs.metaworld.metaworld_env import MetaWorldEnv

from rlinf_async.hosts.rlinf.compat import RLINF_VARIABLE, rendering_on_own_gpu

STAGE = 5


@pytest.fixture
def devices(monkeypatch):
    """Where simulators render, as they are made."""
    seen = []
    model = SimpleNamespace(cam_pos=[None] * 3)
    simulator = SimpleNamespace(model=model)
    for _ in range(6):
        simulator = SimpleNamespace(env=simulator, model=model)

    def make(*args, **kwargs):
        seen.append(os.environ[RLINF_VARIABLE])
        return simulator

    monkeypatch.setattr(gymnasium, "make", make)
    monkeypatch.setenv(RLINF_VARIABLE, "3")
    return seen


def started(env_cls):
    """Start both simulators of environments of a class; what they are part of."""
    env = object.__new__(env_cls)
    env.seed_offset, env.num_envs = STAGE, 2
    env.env_names_all, env.task_descriptions_all, env.task_ids = ["reach-v3"], ["reach"], [0, 0]
    for start in env.get_env_fns():
        start()
    return env


def test_rlinf_alone_renders_on_the_device_numbered_as_the_stage(devices):
    started(MetaWorldEnv)
    assert devices == [str(STAGE)] * 2


def test_a_shard_renders_on_the_gpu_of_its_worker(devices):
    env_cls = rendering_on_own_gpu(MetaWorldEnv, env_type="metaworld", rank=1)
    env = started(env_cls)
    assert devices == ["3", "3"]
    assert env.seed_offset == STAGE
    assert issubclass(env_cls, MetaWorldEnv)


def test_without_a_gpu_of_its_own_it_is_the_rank_as_with_one_stage(devices, monkeypatch):
    monkeypatch.delenv(RLINF_VARIABLE)
    started(rendering_on_own_gpu(MetaWorldEnv, env_type="metaworld", rank=1))
    assert devices == ["1", "1"]


def test_the_stage_is_put_back_when_a_simulator_does_not_start(devices, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no display")

    monkeypatch.setattr(gymnasium, "make", fail)
    env = object.__new__(rendering_on_own_gpu(MetaWorldEnv, env_type="metaworld", rank=1))
    env.seed_offset, env.num_envs = STAGE, 1
    env.env_names_all, env.task_descriptions_all, env.task_ids = ["reach-v3"], ["reach"], [0]
    (start,) = env.get_env_fns()
    with pytest.raises(RuntimeError, match="no display"):
        start()
    assert env.seed_offset == STAGE


@pytest.mark.parametrize(("env_type", "env_cls"), [("libero", MetaWorldEnv), ("metaworld", object)])
def test_other_environments_stay_as_they_are(env_type, env_cls):
    assert rendering_on_own_gpu(env_cls, env_type=env_type, rank=0) is env_cls

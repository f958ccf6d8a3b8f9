"""The env worker as RLinf drives it, and who is on the accelerators when, where parts take turns on them."""

import asyncio
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from tests.hosts.rlinf.workers import (
    ACTION,
    CHUNK,
    HORIZON,
    SHARDS,
    Walks,
    config,
    in_one_process,
    rollout_worker,
    settings_of,
    with_walks,
)


def test_environments_of_one_section_for_training_and_evaluation_are_told_apart():
    cfg = config("env.eval=${env.train}")
    with in_one_process():
        worker = with_walks(ShardedEnvWorker(cfg))
        assert worker.envs_per_shard("train") == worker.train_num_envs_per_stage
        worker.eval_env_list = worker._setup_env_and_wrappers(
            env_cls=type(worker.env_list[0]), env_cfg=cfg.env.eval, num_envs_per_stage=3
        )
        assert (worker.envs_per_shard("train"), worker.envs_per_shard("eval")) == (
            worker.train_num_envs_per_stage,
            3,
        )


def test_rlinfs_own_loop_does_not_run_here():
    with in_one_process():
        worker = ShardedEnvWorker(config())
    with pytest.raises(RuntimeError, match="give RLinf's EmbodiedRunner"):
        asyncio.run(worker.interact("input", "output", None, None))


class Movable(Walks):
    """Simulators that say in which thread they have left."""

    left: ClassVar[list[str]] = []

    def offload(self):
        self.left.append(threading.current_thread().name)


@pytest.mark.parametrize("offloads", [True, False])
def test_simulators_leave_in_the_threads_that_made_them_if_the_config_says_so(offloads):
    cfg = config(f"rollout.pipeline_stage_num={SHARDS}", f"env.train.enable_offload={offloads}")
    with in_one_process():
        worker = with_walks(ShardedEnvWorker(cfg), Movable)
        Movable.left.clear()
        asyncio.run(worker.leave())
    threads = [f"train-{stage}_0" for stage in range(SHARDS)]
    assert sorted(Movable.left) == (threads if offloads else [])


@pytest.mark.parametrize("offloads", [True, False])
def test_inference_leaves_when_asked_and_new_weights_bring_it_back(offloads):
    with in_one_process():
        worker = rollout_worker(config(f"rollout.enable_offload={offloads}"))
        moved = []
        worker.hf_model.to = moved.append
        asyncio.run(worker.leave())
        assert moved == (["cpu"] if offloads else [])
        asyncio.run(worker.load(1, []))
        assert moved == (["cpu", worker.device] if offloads else [])


class Endless(Walks):
    """Report no end of an episode."""

    def chunk_step(self, actions):
        seen, rewards, terminations, truncations, info = super().chunk_step(actions)
        return seen, rewards, torch.zeros_like(terminations), torch.zeros_like(truncations), info


@pytest.mark.parametrize(("env_cls", "stage", "sentences"), [(Endless, 0, 1), (Endless, 1, 0), (Walks, 0, 0)])
def test_the_first_shard_of_the_run_looks_for_episodes_without_an_end(env_cls, stage, sentences, monkeypatch):
    remarks = []
    with in_one_process():
        worker = with_walks(ShardedEnvWorker(config(f"rollout.pipeline_stage_num={SHARDS}")), env_cls)
        monkeypatch.setattr(worker, "remark", lambda sentence, *, what: remarks.append((what, sentence)))
        shard = worker.train_shard(stage)

        async def play():
            await shard.start()
            for _ in range(HORIZON):
                await shard.step({"actions": torch.zeros(shard.size, CHUNK, ACTION)})
            await shard.finish()

        asyncio.run(play())
    assert len(remarks) == sentences
    for what, sentence in remarks:
        assert what == "odd environments"
        assert f"(Endless) have reported no end of 6 episodes in a rollout of {HORIZON * CHUNK}" in sentence


def test_joined_shards_have_all_environments_of_the_shards_that_they_were_joined_of():
    cfg = config(f"rollout.pipeline_stage_num={SHARDS}")
    plan = settings_of(cfg).plan
    with in_one_process():
        worker = with_walks(ShardedEnvWorker(cfg))
        before = [env.name.tolist() for env in worker.env_list]
        worker.init_worker = lambda: with_walks(worker)
        worker._open_stages(1)
        worker.build_anew(SimpleNamespace(plan=plan.joined(1)))
    (joined,) = worker.env_list
    assert joined.name.tolist() == [name for names in before for name in names]
    assert worker.envs_per_shard("train") == plan.total_envs == SHARDS * len(before[0])
    assert worker.cfg.rollout.pipeline_stage_num == worker.stage_num == 1


@pytest.mark.parametrize("shards", [4, 2, 1])
def test_scenes_follow_from_the_stages_of_rlinfs_own_loop_whatever_the_shards(shards):
    worker = SimpleNamespace(
        stage_num=shards,
        _stock_stages=1,
        _first_seed=5,
        cfg=SimpleNamespace(env=SimpleNamespace(train=SimpleNamespace(total_num_envs=16))),
        asynchrony=AsyncConfig(),
    )
    stages = ShardedEnvWorker._stages(worker, 8 // shards)
    assert (stages.count, stages.size, stages.seed) == (2, 8, 5)

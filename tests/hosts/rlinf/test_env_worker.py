"""The env worker as RLinf drives it: which environments it has it build, and a loop that is not run here."""

import asyncio

import pytest

from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from tests.hosts.rlinf.workers import config, in_one_process, with_walks


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

"""Which of RLinf's workers Ray starts again when they die, and how one is built in such a place."""

from types import SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf

from rlinf_async.hosts.kit.rebuilds import Rebuilds
from rlinf_async.hosts.rlinf import hooks
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from tests.making import plan, run_settings

AGAIN = {"max_restarts": -1, "max_task_retries": 0}


def allocated(cls, monkeypatch, *restartable):
    """Ray's options of a worker that RLinf's cluster starts."""
    monkeypatch.setattr(hooks, "resolve", lambda cfg: SimpleNamespace(restartable=frozenset(restartable)))
    start = hooks._restarting(lambda cluster, worker, **_: ray.remote(worker)._default_options)
    options = start("cluster", cls=cls, worker_rank=0, cls_args=("cfg",), cls_kwargs={})
    return {name: options[name] for name in AGAIN if name in options}


def test_what_the_run_may_restart_is_started_again(monkeypatch):
    assert allocated(ShardedEnvWorker, monkeypatch, "env") == AGAIN
    assert allocated(BatchingRolloutWorker, monkeypatch, "env", "inference") == AGAIN


@pytest.mark.parametrize(
    ("cls", "restartable"),
    [(BatchingRolloutWorker, ["env"]), (ShardedEnvWorker, []), (StreamingActorWorker, ["env", "inference"])],
)
def test_nothing_else_is(monkeypatch, cls, restartable):
    assert allocated(cls, monkeypatch, *restartable) == {}


def test_a_successor_waits_at_no_barrier_and_its_environments_have_another_seed():
    seen = []

    class Worker:
        cfg = OmegaConf.create({"env": {"train": {"seed": 5}}})
        generation = 2
        _init_alone = ShardedEnvWorker._init_alone

        def broadcast(self):
            raise AssertionError("the others are not there")

        def init_worker(self):
            self.broadcast(True, groups=[])
            seen.append(self.cfg.env.train.seed)

    worker = Worker()
    ShardedEnvWorker.init_again(worker)
    assert seen == [5 + 7919 * 2000]
    assert worker.broadcast.__func__ is Worker.broadcast


def test_an_env_worker_that_joins_shards_builds_all_of_them_with_another_seed_and_waits_for_nobody():
    seen = []

    class Worker:
        cfg = OmegaConf.create({"rollout": {"pipeline_stage_num": 8}})
        stage_num, _joined = 8, 1
        _init_alone = ShardedEnvWorker._init_alone

        def broadcast(self):
            raise AssertionError("the others do the same")

        def init_worker(self):
            self.broadcast(True, groups=[])
            section = OmegaConf.create({"seed": 5})
            seen.append([self._rebuilds.seeded("train", stage, section).seed for stage in range(2)])

    worker = Worker()
    worker._rebuilds, worker._makers = Rebuilds(), {"train": "of eight", "eval": "of eight"}
    ShardedEnvWorker.build_anew(worker, run_settings(plan=plan(total_envs=16, shards_per_worker=2)))
    assert (worker.stage_num, worker.cfg.rollout.pipeline_stage_num) == (2, 2)
    assert worker._joined == 4
    assert worker._makers == {}
    assert seen == [[5 + 7919] * 2]

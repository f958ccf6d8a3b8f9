import os
import signal
import sys
from pathlib import Path

import pytest
import rlinf.workers.env.env_worker as env_module
from omegaconf import OmegaConf
from rlinf.runners.async_ppo_embodied_runner import AsyncPPOEmbodiedRunner
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster, Worker
from rlinf.workers.actor.async_ppo_fsdp_worker import AsyncPPOEmbodiedFSDPActor
from rlinf.workers.actor.fsdp_actor_worker import EmbodiedFSDPActor
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.hf.async_huggingface_worker import AsyncMultiStepRolloutWorker
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker

from rlinf_async import plugin
from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf import tree
from rlinf_async.hosts.rlinf.hooks import prepare, say_once
from rlinf_async.hosts.rlinf.runner import AsyncEmbodiedRunner
from rlinf_async.hosts.rlinf.worker_process import EXT_MODULE, OWN_MODULE, USERS_MODULE, WorkerHooks

STOCK = (EnvWorker, MultiStepRolloutWorker, EmbodiedFSDPActor)
ASYNCHRONOUS = (AsyncEnvWorker, AsyncMultiStepRolloutWorker, AsyncPPOEmbodiedFSDPActor)


@pytest.fixture
def installed():
    plugin.register()
    yield
    plugin.unregister()


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv(EXT_MODULE, raising=False)


def config(*overrides: str):
    # Without the warm start, which would clone a policy before the first worker.
    return compose_config("metaworld_ppo_mlp", ["~warm_start", *overrides])


def test_an_active_config_turns_rlinfs_classes_into_ours(installed):
    names = [worker.create_group(config()).worker_cls_name for worker in STOCK]
    assert names == ["ShardedEnvWorker", "BatchingRolloutWorker", "StreamingActorWorker"]
    assert type(EmbodiedRunner.__new__(EmbodiedRunner, cfg=config())).__name__ == "AsyncEmbodiedRunner"


def test_the_classes_of_rlinfs_asynchronous_script_become_ours_too(installed):
    names = [worker.create_group(config()).worker_cls_name for worker in ASYNCHRONOUS]
    assert names == ["ShardedEnvWorker", "BatchingRolloutWorker", "StreamingActorWorker"]


def test_a_runner_of_rlinfs_asynchronous_script_is_made_as_ours_with_its_arguments(installed, monkeypatch):
    made = []
    monkeypatch.setattr(AsyncEmbodiedRunner, "__init__", lambda self, cfg, **groups: made.append(groups))
    cfg = config()
    runner = AsyncPPOEmbodiedRunner(cfg=cfg, actor=1, rollout=2, env=3, reward=None)
    assert type(runner) is AsyncEmbodiedRunner
    assert made == [{"actor": 1, "rollout": 2, "env": 3, "reward": None}]


def test_a_launcher_that_starts_the_cluster_without_a_config_is_checked_at_its_first_worker(installed):
    cfg = config("rollout.pipeline_stage_num=1")
    EnvWorker.create_group(cfg)
    assert cfg.rollout.pipeline_stage_num == 2
    with pytest.raises(ValueError, match="did you mean async"):
        EnvWorker.create_group(config("async.rolout.shards=2"))


@pytest.mark.parametrize("off", ["async.mode=off", "~async", "runner.only_eval=true"])
def test_without_an_active_block_rlinfs_classes_stay(installed, off):
    assert [worker.create_group(config(off)).worker_cls_name for worker in STOCK] == [
        worker.__name__ for worker in STOCK
    ]
    assert type(EmbodiedRunner.__new__(EmbodiedRunner, cfg=config(off))) is EmbodiedRunner


def test_registering_twice_and_taking_it_out_leaves_rlinf_as_it_was():
    plugin.unregister()
    before = (
        Worker.__dict__["create_group"],
        Cluster.__init__,
        env_module.get_env_cls,
    )
    plugin.register()
    plugin.register()
    assert plugin.is_registered()
    assert Cluster.__init__ is not before[1]
    plugin.unregister()
    assert not plugin.is_registered()
    assert (Worker.__dict__["create_group"], Cluster.__init__, env_module.get_env_cls) == before
    assert type(EmbodiedRunner.__new__(EmbodiedRunner, cfg=config())) is EmbodiedRunner


@pytest.fixture
def signals():
    """The handlers of signals are the process's: they are as they were afterwards."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_worker_groups_that_fail_call_rlinfs_own_handler_where_every_level_is_off(monkeypatch, signals):
    plugin.unregister()
    calls = []

    def start(cluster, cluster_cfg):
        signal.signal(signal.SIGUSR1, lambda number, _: calls.append(number))

    monkeypatch.setattr(Cluster, "__init__", start)
    plugin.register()
    Cluster.__init__(object.__new__(Cluster), cluster_cfg=config("async.mode=off").cluster)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
    plugin.unregister()
    assert len(calls) == 2


def test_preparing_writes_what_was_resolved_where_rlinf_looks_for_it():
    cfg = config()
    prepare(cfg)
    assert cfg.rollout.pipeline_stage_num == 2
    assert cfg["async"].rollout.shards == 2
    assert cfg["async"].rollout.max_batch_size == 32
    assert os.environ[EXT_MODULE] == OWN_MODULE
    prepare(cfg)
    assert cfg.rollout.pipeline_stage_num == 2


def test_what_gives_way_is_said_once_at_the_start(capsys, monkeypatch):
    monkeypatch.setattr("rlinf_async.extras.is_here", lambda package: True)
    sampling = ("actor.model.model_type=openvla_oft", "rollout.sampling_params.top_k=50")
    cfg = config("actor.enable_offload=true", *sampling)
    say_once(prepare(cfg), cfg)
    said = capsys.readouterr().out
    assert "async.train stays off: it does not support rollout.sampling_params.top_k=50" in said
    assert "actor.enable_offload=false: the learner works while rollouts go on" in said
    assert (cfg.actor.enable_offload, cfg["async"].train.enabled) == (False, False)
    say_once(prepare(cfg), cfg)  # RLinf's scripts start the cluster twice
    assert capsys.readouterr().out == ""


def test_an_rlinf_that_lacks_what_we_extend_is_refused_before_anything_starts(monkeypatch):
    theirs = tree.RLinfTree(Path("/their/rlinf"), "0.5.0", ("EnvWorker.env_interact_step",))
    monkeypatch.setattr(tree, "rlinf_tree", lambda: theirs)
    with pytest.raises(ValueError, match=r"RLinf 0\.5\.0 in /their/rlinf .* no EnvWorker\.env_interact_step"):
        prepare(config())
    prepare(config("async.mode=off"))


def test_without_any_rlinf_the_remedy_is_said(monkeypatch):
    monkeypatch.setattr(tree, "rlinf_tree", lambda: None)
    with pytest.raises(ValueError, match="PYTHONPATH"):
        prepare(config())


def test_a_config_that_needs_nothing_of_ours_changes_nothing():
    cfg = config("~async", "env.train.env_class=null")
    before = OmegaConf.to_yaml(cfg)
    prepare(cfg)
    assert OmegaConf.to_yaml(cfg) == before
    assert EXT_MODULE not in os.environ


def test_a_users_extension_module_keeps_its_place_beside_an_active_run(monkeypatch):
    monkeypatch.setenv(EXT_MODULE, "users_module")
    prepare(config())
    assert os.environ[EXT_MODULE] == "users_module"


def test_without_active_levels_a_users_extension_module_is_loaded_by_ours(monkeypatch, tmp_path):
    (tmp_path / "users_module.py").write_text("calls = []\ndef register():\n    calls.append(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(EXT_MODULE, "users_module")
    monkeypatch.setenv(USERS_MODULE, "")
    prepare(config("async.mode=off"))
    assert os.environ[EXT_MODULE] == OWN_MODULE
    monkeypatch.setenv("WORKER_NAME", "a worker process")
    host = WorkerHooks()
    host.install()
    try:
        assert sys.modules["users_module"].calls == [1]
    finally:
        host.remove()


def test_a_users_extension_module_may_register_the_plugin_that_loads_it(monkeypatch, tmp_path):
    (tmp_path / "registering.py").write_text("from rlinf_async.plugin import register\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(USERS_MODULE, "registering")
    monkeypatch.setenv("WORKER_NAME", "a worker process")
    plugin.register()
    try:
        assert plugin.is_registered()
    finally:
        plugin.unregister()


def test_an_environment_class_by_name_is_found_through_its_entry_point(installed):
    assert env_module.get_env_cls("metaworld", config().env.train).__name__ == "MetaWorldTaskEnv"

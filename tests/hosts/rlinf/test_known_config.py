"""Configs that a step reads: each value is looked up once, and only while it steps."""

import threading

import pytest
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, MissingMandatoryValue

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.rlinf.compat import known_configs
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.known_config import KnownConfig, StepConfig, reading
from tests.hosts.rlinf.workers import config, in_one_process


def section():
    read = OmegaConf.create(
        {"env": {"size": 3, "same": "${env.size}", "none": None, "missing": "???"}, "list": [1, 2]}
    )
    OmegaConf.set_struct(read, True)
    return read


@pytest.mark.parametrize("name", ["size", "same", "none", "missing", "absent"])
def test_it_is_read_as_the_config_itself(name):
    for read in (section().env, KnownConfig(section()).env):
        for _ in range(2):  # the second time from memory
            if name == "absent":
                with pytest.raises(ConfigAttributeError):
                    getattr(read, name)
            elif name == "missing":
                with pytest.raises(MissingMandatoryValue):
                    getattr(read, name)
            else:
                expected = None if name == "none" else 3
                assert (getattr(read, name), read[name]) == (expected, expected)
            absent = name in ("absent", "missing")
            assert [read.get(name, default) for default in ("a", "b")] == (
                ["a", "b"] if absent else [getattr(read, name)] * 2
            )
    assert lookup(KnownConfig(section()), "env.size") == lookup(section(), "env.size") == 3


def test_a_value_is_looked_up_once():
    looked_up = []
    OmegaConf.register_new_resolver("note", lambda: looked_up.append(1) or len(looked_up), replace=True)
    config, known = OmegaConf.create({"a": "${note:}"}), KnownConfig(OmegaConf.create({"a": "${note:}"}))
    assert [config.a, config.a] == [1, 2]
    assert [known.a, known.a, known.get("a"), known.get("a")] == [3, 3, 4, 4]


class Worker:
    cfg = StepConfig()

    def __init__(self, cfg):
        self.cfg = cfg


def test_only_the_thread_that_steps_reads_from_memory():
    worker = Worker(section())
    known, elsewhere = {"cfg": KnownConfig(worker.cfg)}, []
    with reading(known):
        thread = threading.Thread(target=lambda: elsewhere.append(worker.cfg))
        thread.start()
        thread.join()
        assert worker.cfg is known["cfg"]
    assert elsewhere == [worker.cfg]
    assert isinstance(worker.cfg, DictConfig)


class Calibrated(ShardedEnvWorker):
    def env_interact_step(self, chunk_actions, stage_id):
        return super().env_interact_step(chunk_actions, stage_id)


@pytest.mark.parametrize(("cls", "knows"), [(ShardedEnvWorker, True), (Calibrated, False)])
def test_a_step_that_is_not_rlinfs_own_reads_the_config_itself(cls, knows):
    with in_one_process():
        worker = cls(config())
    assert (known_configs(worker, "env_interact_step") is not None) == knows
    assert known_configs(worker, "env_evaluate_step") is not None


def test_rlinf_may_ask_the_class_for_every_attribute_as_it_does_to_find_its_methods():
    methods = {name for name in dir(ShardedEnvWorker) if callable(getattr(ShardedEnvWorker, name))}
    assert "init_worker" in methods
    assert not methods & {"cfg", "model_cfg"}

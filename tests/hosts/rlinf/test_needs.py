"""Keys without which RLinf's environments, models and workers are not made are asked for before Ray."""

import ast
import copy
import random
import sys

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

import ray
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlinf_async.core.config_keys import dotted
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.rlinf import sources as rlinf_sources
from rlinf_async.hosts.rlinf.config import resolve, write_back
from rlinf_async.hosts.rlinf.config_reads import (
    IF_THERE,
    Reads,
    of_environment,
    of_maniskill,
    of_model,
    of_worker,
)
from rlinf_async.hosts.rlinf.keys import needed_key_reasons
from rlinf_async.hosts.rlinf.presence import check_by_rlinf
from rlinf_async.hosts.rlinf.sources import Sources, sources_of
from rlinf_async.hosts.rlinf.view import RLinfView
from rlinf_async.hosts.rlinf.worker_process import register_models
from tests.hosts.test_any_key import reasons
from tests.hosts.test_any_overrides import host_and_config

SOURCE = """
class Env:
    def __init__(self, cfg, seed):
        self.cfg, self.other = cfg, seed
        self.cfg = cfg
        cfg.filled_in = 3
        self.video = cfg.video.save and cfg.only_with_video
        self.size: int = self.cfg["size"] + cfg.get("default", 1) + cfg.filled_in
        section = cfg.section.get("inner", {})
        if cfg.switch:
            self.a = cfg.in_both + cfg.in_one
        else:
            self.a = cfg.in_both
        self.make(cfg.passed)
        self.late = [each.key for each in cfg.listed] or (lambda: cfg.later)
        if cfg.leaves:
            return
        self.behind = cfg.behind

    def make(self, part):
        self.part = part.of_it + self.cfg.of_all
"""


def test_a_key_is_needed_where_it_is_read_whatever_else_a_config_says():
    (definition,) = ast.parse(SOURCE).body
    methods = {node.name: node for node in definition.body}
    found = {".".join(chain) for chain in Reads(methods=methods).certain("__init__")}
    assert found == {
        "video.save",
        "size",
        "section",
        "switch",
        "in_both",
        "passed",
        "passed.of_it",
        "of_all",
        "leaves",
        # Calculated with, or asked for a key of their own.
        "size.=",
        "passed.of_it.=",
        "of_all.=",
        "section.*",
        # Where it is there, null is not its default.
        "default.?",
    }


VALUES = """
class Base:
    def __init__(self, cfg, number):
        self.cfg = cfg
        cfg.arguments.number = number
        self.steps = 0
        if cfg.get("steps"):
            self.steps = cfg.steps
        self.many = self.steps > 0 and number

    def step(self, actions):
        self.done = self.count >= self.cfg.longest
        for each in actions:
            self.step = cfg.never_certain + 1


class Env(Base):
    def __init__(self, cfg, number):
        super().__init__(cfg, number)
        self.env = self.maker()
        build(**cfg.options)

    def maker(self):
        def make():
            return simulator(int(self.cfg.width), self.cfg.title, "%s" % self.cfg.shown)

        return make
"""


def test_a_value_is_needed_where_it_is_calculated_with_also_in_a_base_and_in_a_function_handed_back(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(VALUES)
    methods = Sources(package).methods("package:Env")
    found = {".".join(chain) for chain in Reads(methods=methods).certain("__init__", "step")}
    assert found == {
        "arguments.*",
        "options",
        "options.*",
        "width",
        "width.=",
        "title",
        "shown",
        "longest",
        "longest.=",
    }


def refused(base, kind, section, key):
    cfg = plain(base)
    cfg["env"]["train"] |= {"env_type": kind, "env_class": None, **copy.deepcopy(section)}
    *sections, name = key.split(".")
    place = cfg["env"]["train"]
    for each in sections:
        place = place[each]
    before = [reason.text for reason in needed_key_reasons(RLinfView.of(cfg))]
    place[name] = None
    return before, [
        reason.text for reason in needed_key_reasons(RLinfView.of(cfg)) if reason.text not in before
    ]


CAMERA = {"height": 64, "width": 64}
ISAAC = {
    "id": "Isaac-Stack-Cube-Franka-IK-Rel-Visuomotor-Rewarded-v0",  # of RLinf's table
    "num_envs": None,
    "task_description": "stack",
    "table_cam": CAMERA,
    "wrist_cam": CAMERA,
}
MANISKILL = {
    "id": "PickCube-v1",
    "num_envs": None,
    "sim_backend": "cpu",
    "obs_mode": None,
    "enable_shadow": None,
}
MANISKILL |= {"sim_config": {"sim_freq": 100}}


@pytest.mark.parametrize(
    ("kind", "arguments", "key", "said"),
    [
        ("isaaclab", ISAAC, "init_params", "init_params=null must be a block of keys"),
        ("isaaclab", ISAAC, "init_params.id", "init_params.id=null must have a value"),
        ("isaaclab", ISAAC, "init_params.table_cam", "init_params.table_cam=null must be a block of keys"),
        ("isaaclab", ISAAC, "init_params.wrist_cam.height", "wrist_cam.height=null must have a value"),
        ("isaaclab", ISAAC, "max_episode_steps", "max_episode_steps=null must have a value"),
        ("maniskill", MANISKILL, "init_params", "init_params=null must be a block of keys"),
        ("maniskill", MANISKILL, "init_params.id", "init_params.id=null must be the name of a task"),
        ("maniskill", MANISKILL, "wrap_obs_mode", "env.train.wrap_obs_mode=null must have a value"),
        ("maniskill", MANISKILL, "reward_mode", "env.train.reward_mode=null must have a value"),
    ],
)
def test_nulls_that_end_rlinfs_simulators_are_named_before_they_are_built(base, kind, arguments, key, said):
    more = {"use_rel_reward": False, "reward_coef": 1.0, "use_fixed_reset_state_ids": False}
    before, after = refused(base, kind, {"init_params": arguments, **more}, key)
    assert before == []
    assert any(said in text for text in after), after


def test_maniskills_arguments_are_refused_as_null_where_their_type_does_not_take_it(base):
    pytest.importorskip("mani_skill", reason="ManiSkill is not installed")
    for key, is_refused in {"sim_backend": True, "sim_config.sim_freq": True, "obs_mode": False}.items():
        more = {"init_params": MANISKILL, "use_rel_reward": False, "use_fixed_reset_state_ids": False}
        before, after = refused(base, "maniskill", more, f"init_params.{key}")
        assert before == []
        expected = f"env.train.init_params.{key}=null must have a value: ManiSkill needs one; remove it"
        assert after == ([expected] if is_refused else [])


def test_a_simulator_that_was_not_there_is_found_when_it_is(monkeypatch):
    pytest.importorskip("mani_skill", reason="ManiSkill is not installed")
    monkeypatch.setattr(rlinf_sources, "_found", {})
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "mani_skill", None)
        assert not of_maniskill()
    assert "sim_backend" in of_maniskill()


@pytest.fixture(scope="module")
def base():
    register_models()
    return host_and_config("rlinf")[1]


def without(cfg, key):
    changed = cfg.copy()
    section, _, name = key.rpartition(".")
    with open_dict(changed):
        around = OmegaConf.select(changed, section) if section else changed
        del around[name]
    return changed


def test_rlinfs_own_builder_ends_without_any_key_that_is_needed_and_without_no_other(base):
    from rlinf.models.embodiment.mlp_policy import get_model

    chains = of_model(sources_of("rlinf"), "mlp_policy")
    needed = {".".join(chain) for chain in chains if chain[-1] != IF_THERE}
    section = OmegaConf.create(plain(base)["actor"]["model"])
    assert needed <= set(section)
    for key in section:
        OmegaConf.set_struct(short := copy.deepcopy(section), False)
        del short[key]
        OmegaConf.set_struct(short, True)
        if key in needed:
            with pytest.raises(OmegaConfBaseException, match=key):
                get_model(short)
        else:
            get_model(short)


def test_the_environments_and_workers_of_this_rlinf_are_read():
    sources = sources_of("rlinf")
    name, chains = of_environment(sources, "metaworld")
    assert name == "MetaWorldEnv"
    assert {("seed",), ("video_cfg",), ("task_suite_name",)} <= chains
    assert of_environment(sources, "nothing_of_rlinfs") == ("", frozenset())
    assert ("rollout", "model", "model_path") in of_worker(sources, "MultiStepRolloutWorker")
    assert ("actor", "optim", "adam_beta1") in of_worker(sources, "EmbodiedFSDPActor")


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("value", [None, 3])
def test_something_else_in_the_place_of_a_block_that_is_read_is_named_with_its_reader(base, mode, value):
    cfg = {**plain(base), "runner": {**plain(base)["runner"], "val_check_interval": 2, "save_interval": 2}}
    cfg["env"][mode]["video_cfg"] = value
    said = [reason.text for reason in needed_key_reasons(RLinfView.of(cfg))]
    shown = "null" if value is None else "3"
    assert said == [
        f"env.{mode}.video_cfg={shown} must be a block of keys: RLinf's env worker reads "
        f"env.{mode}.video_cfg.save_video; set it"
    ]
    cfg["runner"]["val_check_interval"] = -1
    assert bool(list(needed_key_reasons(RLinfView.of(cfg)))) == (mode == "train")


def test_a_config_that_lacks_a_key_is_refused_or_passes_rlinfs_own_check(base):
    adapter, _ = host_and_config("rlinf")
    keys = random.Random(52).sample(sorted(dotted(OmegaConf.to_container(base))), 15)
    outcomes = []
    for key in [*keys, "env.train.group_size", "runner.task_type", "critic.use_critic_model"]:
        cfg = without(base, key)
        outcomes.append(reasons(adapter, cfg) is None)
        if outcomes[-1]:
            write_back(cfg, resolve(cfg))
            check_by_rlinf(cfg)
    assert set(outcomes) == {True, False}


def test_a_config_without_a_simulator_is_refused_in_a_sentence(base):
    adapter, _ = host_and_config("rlinf")
    cfg = without(without(base, "env.train.env_type"), "env.eval.env_type")
    (reason,) = reasons(adapter, cfg)
    assert reason.text.startswith("env.train.env_type is missing; set it to the name of a simulator of RLinf")


def test_what_rlinf_itself_refuses_is_a_sentence_before_ray_starts(base, monkeypatch):
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    cfg = base.copy()
    write_back(cfg, resolve(cfg))
    before = plain(cfg)
    check_by_rlinf(cfg)
    assert plain(cfg) == before
    cfg.actor.fsdp_config.mixed_precision.param_dtype = "bf16"
    with open_dict(cfg):
        cfg.actor.fsdp_config.amp_autocast = {"enabled": True, "precision": "bf16"}
    with pytest.raises(
        ValueError, match="RLinf refuses this config: amp_autocast should not be enabled"
    ) as said:
        check_by_rlinf(cfg)
    assert len(str(said.value).splitlines()) == 1
    cfg = base.copy()
    with open_dict(cfg):
        cfg.cluster.node_groups = [{"label": "a", "node_ranks": "0", "hardwares": {}}]
    with pytest.raises(ValueError, match=r"RLinf refuses this config: Unknown fields '\{'hardwares'\}'"):
        check_by_rlinf(cfg)

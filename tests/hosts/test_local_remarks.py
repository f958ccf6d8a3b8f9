"""Keys of `model` that building a policy does not read are named, and no others."""

import copy
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async import entry_points
from rlinf_async.compose import compose_config
from rlinf_async.hosts import remarks
from rlinf_async.hosts.host import THIS_MACHINE
from rlinf_async.hosts.local.config import settings_of
from rlinf_async.hosts.local.explain import explain
from rlinf_async.hosts.remarks import unread_keys

SECTION = {"model_type": "mine", "inputs": 3, "own": {"a": 1}, "hiden": 8}


class Layer(torch.nn.Linear):
    def predict_action_batch(self, **_):
        """Never called."""


def sized(*sizes):
    return Layer(*sizes)


BUILDERS = {
    "as attributes": (lambda cfg, _: sized(cfg.inputs, cfg.own.a), ["hiden"]),
    "with defaults": (lambda cfg, _: sized(cfg.get("inputs"), cfg.get("hidden", 2)), ["own", "hiden"]),
    "as items": (lambda cfg, _: sized(cfg["inputs"], 2), ["own", "hiden"]),
    "by a look": (lambda cfg, _: sized(2, 2 + ("hiden" in cfg)), ["inputs", "own"]),
    "as keywords": (lambda cfg, _: sized(dict(**cfg)["inputs"], 2), []),
    "as plain data": (lambda cfg, _: sized(OmegaConf.to_container(cfg)["inputs"], 2), []),
    "of a copy": (lambda cfg, _: sized(copy.deepcopy(cfg).inputs, 2), []),
    "merged": (lambda cfg, _: sized(OmegaConf.merge(cfg, {"b": 2}).inputs, 2), []),
    "by a path": (lambda cfg, _: sized(3, OmegaConf.select(cfg, "own.a")), ["inputs", "hiden"]),
    "one by one": (lambda cfg, _: sized(*[2 for _ in cfg][:2]), []),
}


@pytest.mark.parametrize("way", BUILDERS)
def test_what_no_builder_reads_is_named(way, monkeypatch):
    build, unread = BUILDERS[way]
    module = ModuleType("theirs")
    module.build = build
    monkeypatch.setitem(sys.modules, "theirs", module)
    points = EntryPoints([EntryPoint("mine", "theirs:build", entry_points.MODELS_GROUP)])
    monkeypatch.setattr(entry_points, "provided", lambda group: points.select(group=group))
    said = list(unread_keys(SECTION, key="model"))
    assert [text.partition("=")[0] for text in said] == [f"model.{name}" for name in unread]
    assert all(text.endswith(" is not read when mine is built") for text in said)
    assert list(unread_keys({**SECTION, "model_path": "/somewhere"}, key="model")) == []


def test_a_key_that_is_refused_may_be_null_and_not_set():
    cfg = compose_config("local/point_reach", ["+settings.hidden=null"])
    assert settings_of(cfg) == settings_of(compose_config("local/point_reach", []))
    with pytest.raises(
        ValueError, match=r"does not support settings\.hidden=3; remove it: a declared policy"
    ):
        settings_of(compose_config("local/point_reach", ["+settings.hidden=3"]))


OWN = ("env_class", "max_episode_steps", "seed")


def env_remarks(monkeypatch, unresolved="", **keys):
    points = EntryPoints([EntryPoint("theirs", "their_envs.sims.reach:Reach", entry_points.ENVS_GROUP)])
    monkeypatch.setattr(remarks, "provided", lambda group: points.select(group=group))
    section = {"env_class": "theirs", "max_episode_steps": 8, **keys}
    return list(remarks.misspelt_env_keys(section, key="env", own=OWN, unresolved=unresolved))


@pytest.fixture
def their_envs(tmp_path, monkeypatch):
    package = tmp_path / "their_envs"
    (package / "sims").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('only read')")
    (package / "sims" / "reach.py").write_text(
        "class Reach:\n    def __init__(self, cfg):\n        cfg.goal\n"
    )
    (package / "settings.py").write_text("def camera(cfg):\n    return cfg.get('image_size', 64)\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_misspelt_key_of_environments_is_named_with_the_one_that_their_package_has(their_envs, monkeypatch):
    assert env_remarks(monkeypatch, imgae_size=32, goal=1, max_epsode_steps=9) == [
        "nothing in their_envs reads env.imgae_size=32; did you mean env.image_size?",
        "nothing in their_envs reads env.max_epsode_steps=9; did you mean env.max_episode_steps?",
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"image_size": 32, "goal": 1},  # another module of the package reads the first
        {"passed_on": 3},  # perhaps to another package
        {"imgae_size": None},
        {"imgae_size": 3, "unresolved": {"model": {"size": "${env.imgae_size}"}}},
    ],
)
def test_what_an_environment_may_read_is_not_named(their_envs, monkeypatch, keys):
    assert env_remarks(monkeypatch, **keys) == []


def test_a_package_is_not_searched_where_the_host_reads_all_keys(monkeypatch):
    monkeypatch.setattr(remarks, "words_of_module", lambda name: pytest.fail("a package is read"))
    assert env_remarks(monkeypatch) == []


def test_explain_names_a_misspelt_key_of_environments_of_this_package():
    cfg = compose_config("local/point_reach", ["+env.max_epsode_steps=9", "+env.note=mine"])
    remarks = explain(cfg, THIS_MACHINE)["remarks"]
    said = "nothing in point_reach reads env.max_epsode_steps=9; did you mean env.max_episode_steps?"
    assert [text for text in remarks if " env." in text] == [said]

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
from rlinf_async.hosts.kit.unread import unread_keys
from rlinf_async.hosts.local.config import settings_of

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

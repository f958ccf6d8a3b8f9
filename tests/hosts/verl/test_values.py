"""What a config changes of veRL's defaults, of which some point to other keys."""

import pytest
from omegaconf import OmegaConf

from rlinf_async.core.config_keys import dotted
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.verl.keys import defaults, resolved_defaults
from rlinf_async.hosts.verl.values import changes

ACTOR = "actor_rollout_ref.actor"


def test_defaults_come_to_what_omegaconf_makes_of_them():
    stock = dotted(OmegaConf.to_container(OmegaConf.create(dict(defaults())), resolve=True))
    assert sum("${" in str(value) for value in dotted(defaults()).values()) > 80
    assert resolved_defaults() == stock


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"trainer.n_gpus_per_node": 3},
        {"trainer.project_name": "other", f"{ACTOR}.shuffle": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 99},
        {"global_profiler.tool": "nsys", f"{ACTOR}.profiler.tool_config.npu.level": "level1"},
        {"actor_rollout_ref.model.mtp.enable": True, f"{ACTOR}.checkpoint.save_contents": ["model"]},
    ],
)
def test_a_key_that_follows_another_is_no_change_of_its_own(overrides):
    config = OmegaConf.create(dict(defaults()))
    for key, value in overrides.items():
        OmegaConf.update(config, key, value)
    assert dict(changes(plain(config))) == overrides


def test_a_key_that_no_longer_follows_another_is_a_change():
    config = OmegaConf.create(dict(defaults()))
    OmegaConf.update(config, "trainer.n_gpus_per_node", 3)
    OmegaConf.update(config, "actor_rollout_ref.rollout.n_gpus_per_node", 2)
    assert dict(changes(plain(config))) == {
        "trainer.n_gpus_per_node": 3,
        "actor_rollout_ref.rollout.n_gpus_per_node": 2,
    }

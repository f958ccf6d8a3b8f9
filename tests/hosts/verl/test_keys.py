"""What a config changes of veRL's defaults, of which some point to other keys."""

from dataclasses import fields

import pytest
from omegaconf import OmegaConf

from rlinf_async.core.config_keys import dotted
from rlinf_async.entry_points import MODELS_GROUP
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.verl.algorithms import AGGREGATION_MODES, ESTIMATOR_NAMES
from rlinf_async.hosts.verl.config import fill_in
from rlinf_async.hosts.verl.defaults import changes, defaults, is_known, resolved_defaults
from rlinf_async.hosts.verl.explain import explain
from rlinf_async.hosts.verl.placement import PLACED_PROCESSES, PLACEMENT_KEY
from rlinf_async.hosts.verl.reasons import TABLE
from rlinf_async.hosts.verl.view import VerlView
from tests.hosts.verl.configs import composed

ACTOR = "actor_rollout_ref.actor"


def test_the_table_says_what_the_code_does():
    assert TABLE.find(f"{ACTOR}.loss_agg_mode").kind.names == AGGREGATION_MODES
    assert TABLE.find("algorithm.adv_estimator").kind.words == f"an estimator, such as {ESTIMATOR_NAMES[0]}"
    assert TABLE.find("vla.model.model_type").kind.words == f"an entry point of {MODELS_GROUP}"
    assert [name for name in TABLE.names if name.startswith(PLACEMENT_KEY)] == [
        f"{PLACEMENT_KEY}.{each}" for each in PLACED_PROCESSES
    ]


def test_every_key_that_is_read_is_one_of_verls_or_has_a_row():
    names = [each.metadata["key"] for each in fields(VerlView) if each.metadata]
    assert len(names) == len(set(names)) > 60
    sections = {name.rpartition(".")[0] for name in TABLE.names}
    own = [name for name in names if not is_known(name, defaults())]
    assert [name for name in own if TABLE.find(name) is None and name not in sections] == []


def test_defaults_come_to_what_omegaconf_makes_of_them():
    stock = dotted(OmegaConf.to_container(OmegaConf.create(dict(defaults())), resolve=True))
    assert sum("${" in str(value) for value in dotted(defaults()).values()) > 80
    assert dotted(resolved_defaults()) == stock


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


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("algorithm.gamma", 1.0),
        ("critic.cliprange_value", 0.5),
        ("trainer.default_local_dir", "checkpoints/verl_examples/other"),
        (f"{ACTOR}.optim", {"optimizer": "AdamW"}),
        ("actor_rollout_ref.rollout.val_kwargs", {"do_sample": False}),
        ("critic.optim", {"optimizer": "AdamW"}),
    ],
)
def test_a_key_of_verls_that_is_absent_has_verls_default(key, default):
    """In `explain`, and in the config that veRL's own code reads, with keys that point to others."""
    config = composed("trainer.experiment_name=other", "trainer.project_name=verl_examples", f"~{key}")
    assert OmegaConf.select(config, key) is None
    explain(config)
    fill_in(config)
    found = OmegaConf.select(config, key)
    assert found == default if not isinstance(default, dict) else default.items() <= found.items()


def test_a_default_is_not_written_over_a_value_and_a_key_that_every_run_sets_stays_absent():
    config = composed("algorithm.gamma=0.5", "trainer.save_freq=null", "~data.train_batch_size")
    before = dotted(plain(config))
    fill_in(config)
    after = dotted(plain(config))
    changed = {key for key, value in before.items() if after[key] != value}
    assert changed == {key for key in changed if before[key] is None}
    assert after["trainer.save_freq"] == -1
    assert "data.train_batch_size" not in after
    with pytest.raises(ValueError, match=r"data\.train_batch_size is missing"):
        explain(config)

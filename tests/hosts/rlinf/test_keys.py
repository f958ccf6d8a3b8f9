"""Every key of RLinf's config has a fate; an undecided one is named, or refused where RLinf reads it."""

import ast
import os
import re

import pytest

from rlinf_async.compose import compose_config
from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import dotted
from rlinf_async.hosts.rlinf import config_reads, keys
from rlinf_async.hosts.rlinf.explain import undecided
from rlinf_async.hosts.rlinf.host import RLinfHost
from rlinf_async.hosts.rlinf.keys import (
    DEFAULTS,
    TABLE,
    unserved_key_reasons,
)
from rlinf_async.hosts.rlinf.run_settings import REWARD_MODES
from rlinf_async.hosts.rlinf.settings import OFFLOAD_KEYS
from rlinf_async.hosts.rlinf.sources import sources_of
from rlinf_async.hosts.rlinf.translation import TRANSLATIONS
from rlinf_async.observe.display import RunDisplay
from tests.checkouts import TREES, package
from tests.hosts.rlinf.given import config

REPLACED = (
    "workers/env/env_worker.py",
    "workers/env/async_env_worker.py",
    "workers/rollout/hf/huggingface_worker.py",
    "workers/rollout/hf/async_huggingface_worker.py",
    "workers/actor/async_ppo_fsdp_worker.py",
    "runners/embodied_runner.py",
    "runners/async_ppo_embodied_runner.py",
)
"""RLinf's workers and runners that ours take the places of; the actor shares its file with others at v0.3."""
READ = re.compile(r"\bcfg\.(algorithm|runner|rollout|actor)(?:\.get\(\s*\"(\w+)\"|\.(?!get\b)(\w+))")


def fate(key):
    row = TABLE.find(key)
    return row and row.fate


@pytest.mark.parametrize("refusal", TABLE.refused, ids=lambda refusal: refusal.name)
def test_what_is_refused_is_in_no_other_table(refusal):
    assert fate(refusal.name) == "refused"
    assert {row.fate for row in TABLE.rows if row.name == refusal.name} == {"refused"}


def test_what_is_translated_is_in_no_other_table_and_says_into_what():
    assert {name: fate(name) for name in TRANSLATIONS} == dict.fromkeys(TRANSLATIONS, "translated")
    assert TRANSLATIONS == {
        "algorithm.rollout_epoch": {"env.train.rollout_epoch": ""},
        "algorithm.eval_rollout_epoch": {"env.eval.rollout_epoch": ""},
        "algorithm.staleness_threshold": {"async.train.max_staleness": ""},
        "algorithm.behave_weight_threshold": {
            "async.train.correction": "tis",
            "async.advanced.max_weight": "",
        },
    }
    block = {"train": {"correction": "tis", "max_staleness": 1}, "advanced": {"max_weight": 2}}
    assert AsyncConfig.from_mapping(block).advanced.max_weight == 2


def test_the_table_says_what_the_code_does():
    assert TABLE.find("reward.reward_mode").kind.names == REWARD_MODES
    assert tuple(row.name for row in TABLE.rows if row.fate == "changed") == OFFLOAD_KEYS
    assert [key for key, value in DEFAULTS.items() if not TABLE.find(key).kind.accepts(value)] == []


def test_a_key_that_nobody_has_decided_on_has_no_fate():
    assert fate("algorithm.brand_new") is None
    assert fate("rollout.expert_model.model_path") == "refused"
    assert fate("actor.model.precision") == "served"


def test_a_key_without_effect_is_named_with_the_reason_if_it_is_set():
    keys = {"algorithm.on_policy_min_ratio": 0.5, "algorithm.rollout_store_size_per_rank": 2}
    unset = {"runner.overlap_env_bootstrap": False}
    said = list(TABLE.without_effect(dotted(config({**keys, **unset})).items()))
    assert [line.partition(" ")[0] for line in said] == [f"{key}={value}" for key, value in keys.items()]
    assert "max_staleness" in said[0]
    assert "each trained once" in said[1]
    assert not list(TABLE.without_effect(dotted(config()).items()))


def sources(tree):
    """RLinf's code of the classes that ours replace."""
    root = package(tree)
    yield from ((path, (root / path).read_text()) for path in REPLACED)
    for path in (root / "workers" / "actor").glob("*fsdp_actor_worker.py"):
        text = path.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name == "EmbodiedFSDPActor":
                yield path.name, ast.get_source_segment(text, node)


@pytest.mark.parametrize("tree", TREES)
def test_every_key_that_the_replaced_classes_read_has_a_fate(tree):
    reads = {
        f"{section}.{got or named}"
        for _, text in sources(tree)
        for section, got, named in READ.findall(text)
        if got or named
    }
    assert len(reads) > 60
    assert sorted(key for key in reads if fate(key) is None) == []


NEW = {
    "env.brand_new_packing.enable": True,
    "rollout.brand_new_switch": True,
    "algorithm.brand_new_loss": 3,
    "somebody.elses": 1,
}


def test_a_new_key_in_any_section_is_named_with_its_value():
    said = list(undecided(config(NEW)))
    assert {line.partition(":")[0] for line in said} == {
        "env.brand_new_packing.enable=True",
        "rollout.brand_new_switch=True",
        "algorithm.brand_new_loss=3",
        "somebody is a block of this config's own, which RLinf does not read",
    }
    assert not list(unserved_key_reasons(config(NEW)))
    assert not list(undecided(config()))


def test_a_key_that_is_nearly_a_known_one_is_named_with_that():
    (said,) = undecided(config({"algorithm.gama": 0.9}))
    assert said.endswith("did you mean algorithm.gamma?")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("actor.optimizer.lr", "actor.optim.lr"),
        ("env.training.total_num_envs", "env.train.total_num_envs"),
        ("rollout.models.precision", "rollout.model.precision"),
        ("runner.loggers", "runner.logger"),
        ("cluster.component_placements.env", "cluster.component_placement"),
    ],
)
def test_a_section_that_is_nearly_a_known_one_is_no_part_of_that(key, near):
    (said,) = undecided(config({key: 1}))
    assert said.endswith(f"did you mean {near}?")


def test_what_packages_prepare_and_what_is_null_is_not_named():
    assert not list(undecided(config({"warm_start.seed": 3, "algorithm.brand_new_loss": None})))


def test_a_key_that_rlinfs_own_workers_read_is_refused_unless_it_is_off(monkeypatch):
    monkeypatch.setattr(keys, "chains_here", lambda: frozenset({("env", "brand_new_packing"), ("env",)}))
    (reason,) = unserved_key_reasons(config(NEW))
    assert reason.text.startswith(
        "env.brand_new_packing.enable=True is read by RLinf's own workers or runner"
    )
    assert reason.override == "~env.brand_new_packing.enable"
    assert len(list(undecided(config(NEW)))) == len(NEW) - 1
    off = config({"env.brand_new_packing.enable": False})
    assert not list(unserved_key_reasons(off))
    assert list(undecided(off))


def test_a_block_that_a_newer_rlinf_reads_is_none_of_the_users_own(monkeypatch):
    monkeypatch.setattr(keys, "chains_here", lambda: frozenset({("somebody",)}))
    (reason,) = unserved_key_reasons(config({"somebody.elses": 1}))
    assert reason.text.startswith("somebody.elses=1 is read by RLinf")
    assert not list(undecided(config({"somebody.elses": 1})))


SOURCE = """
def helper(cfg):
    return cfg.runner.in_a_function

class Base:
    def __init__(self, cfg):
        self.cfg = cfg
        self.optim = self.cfg.actor.get("optim", {}) or {}

class EnvWorker(Base):
    def run(self):
        # a comment on cfg.comment.lr, with batch_size
        block = self.cfg.env["train"]
        print("cfg.text.lr", block.get("size"), getattr(self.cfg.rollout, "stages", 1), self.optim.lr)
        if "swarm" in self.cfg.cluster and OmegaConf.select(self.cfg, "reward.model.path"):
            other.lr = hparams.lr

class Reasoning:
    def run(self, cfg):
        return cfg.data.max_prompt_length
"""


def test_a_reader_is_a_chain_with_its_section_in_the_classes_that_are_replaced(tmp_path):
    file = tmp_path / "rlinf" / "workers" / "env" / "env_worker.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    whole = {chain for chain in config_reads.chains_of(tmp_path / "rlinf") if len(chain) > 1}
    assert whole == {
        ("runner", "in_a_function"),
        ("actor", "optim"),
        ("actor", "optim", "lr"),
        ("env", "train"),
        ("env", "train", "size"),
        ("rollout", "stages"),
        ("cluster", "swarm"),
        ("reward", "model", "path"),
    }


def test_the_classes_that_are_replaced_are_read():
    chains = keys.chains_here()
    assert {
        ("env", "train", "video_cfg", "save_video"),
        ("rollout", "collect_transitions"),
        ("algorithm", "update_epoch"),
        ("runner", "val_check_interval"),
    } <= chains
    assert {chain[0] for chain in chains} <= TABLE.sections
    found = {
        name
        for place, name in config_reads.REPLACED_CLASSES
        if sources_of("rlinf").defines(f"{place}:{name}")
    }
    assert found == {name for _, name in config_reads.REPLACED_CLASSES}


BLOCKS = ("hparams", "exp", "common", "wandb", "slurm", "vars", "my", "model", "optim", "train", "name")


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_users_own_is_noted_whatever_words_are_in_it(block):
    words = {name for chain in keys.chains_here() for name in chain}
    assert len(words) > 80
    cfg = config({f"{block}.{name}": 3 for name in words})
    assert not list(unserved_key_reasons(cfg))
    (said,) = undecided(cfg)
    assert said.startswith(f"{block} is a block of this config's own, which RLinf does not read")


def test_explain_and_a_run_both_name_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    cfg = compose_config(
        "metaworld_ppo_mlp",
        ["~warm_start", "+algorithm.brand_new_loss=3", f"runner.logger.log_path={tmp_path / 'run'}"],
    )
    said: list[str] = []
    monkeypatch.setattr(RunDisplay, "note", lambda _, text: said.append(text))
    remarks = RLinfHost().explain(cfg)["remarks"]
    RLinfHost().prepare(cfg)
    for notes in (remarks, said):
        assert any(
            note.startswith("algorithm.brand_new_loss=3: the effect of this key was not examined")
            for note in notes
        )

"""Every key of RLinf's config has a fate, and those that do nothing are said to do nothing."""

import ast
import re

import pytest

from rlinf_async.hosts.rlinf.keys import KEY_TRANSLATIONS, REFUSED_KEYS, TABLE, fate
from tests.checkouts import TREES, checkout
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


@pytest.mark.parametrize("refusal", REFUSED_KEYS, ids=lambda refusal: refusal.name)
def test_what_is_refused_is_in_no_other_table(refusal):
    assert fate(refusal.name) == "refused"
    assert {row.fate for row in TABLE.rows if row.name == refusal.name} == {"refused"}


@pytest.mark.parametrize("translation", KEY_TRANSLATIONS, ids=lambda translation: translation.key)
def test_what_is_translated_is_in_no_other_table(translation):
    assert fate(translation.key) == "translated"


def test_a_key_that_nobody_has_decided_on_has_no_fate():
    assert fate("algorithm.brand_new") is None
    assert fate("rollout.expert_model.model_path") == "refused"
    assert fate("actor.model.precision") == "served"


def test_a_key_without_effect_is_named_with_the_reason_if_it_is_set():
    keys = {"algorithm.on_policy_min_ratio": 0.5, "algorithm.rollout_store_size_per_rank": 2}
    said = list(TABLE.without_effect(config({**keys, "runner.overlap_env_bootstrap": False})))
    assert [line.partition(" ")[0] for line in said] == [f"{key}={value}" for key, value in keys.items()]
    assert "max_staleness" in said[0]
    assert "each trained once" in said[1]
    assert not list(TABLE.without_effect(config()))


def sources(tree):
    """RLinf's code of the classes that ours replace."""
    root = checkout(tree) / "rlinf"
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

"""What `explain` says beyond levels and classes: shards, publication, anchors, determinism."""

import io

import pytest
from rich.console import Console

from rlinf_async.hosts.rlinf.compose import compose_config
from rlinf_async.hosts.rlinf.explain import explain, show


def facts(*overrides: str) -> dict:
    return explain(compose_config("metaworld_ppo_mlp", overrides))


def shown(*overrides: str) -> str:
    console = Console(width=200, file=io.StringIO())
    show(facts(*overrides), console)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("overrides", "total", "words"),
    [
        ((), 2, "share the env worker's process"),
        (("async.rollout.shards=4",), 4, "async.rollout.shards"),
        (("rollout.pipeline_stage_num=4",), 4, "rollout.pipeline_stage_num is kept"),
        (("~env.train.processes",), 32, "every metaworld simulator has a process of its own"),
        (("env.train.env_type=maniskill",), 1, "maniskill batches its environments on an accelerator"),
        (("async.mode=train",), 1, "level 2 is off"),
    ],
)
def test_the_number_of_shards_is_explained(overrides, total, words):
    shards = facts(*overrides)["shards"]
    assert shards["total"] == total
    assert words in shards["why"]


@pytest.mark.parametrize("mode", ["full", "train"])
def test_environments_that_must_be_shards_of_their_own_are_explained(mode):
    shards = explain(compose_config("maniskill_ppo_mlp", [f"async.mode={mode}"]))["shards"]
    assert (shards["total"], shards["environments_each"]) == (8, 1)
    assert shards["why"] == "maniskill simulates one environment at a time on the CPU: each is a shard"


def test_it_says_how_new_weights_reach_inference():
    assert "beside training" in facts()["publication"]
    stops = facts("weight_syncer.type=patch")["publication"]
    assert "RLinf's own transport (patch)" in stops
    assert "weight_syncer.type=bucket" in stops
    assert "publication" not in facts("async.mode=off")


@pytest.mark.parametrize("proximal", ["recomputed", "loglinear"])
def test_a_reader_learns_what_the_anchor_costs(proximal):
    text = shown(f"async.train.proximal={proximal}")
    words = {"recomputed": "a pass without gradients over every batch", "loglinear": "train/proximal_error"}
    assert words[proximal] in text


def test_a_deterministic_run_says_what_it_costs_and_needs():
    settings = ("async.mode=train", "async.deterministic=true")
    assert "the same weights, bit for bit" in shown(*settings)
    assert any("kernels must be deterministic" in remark for remark in facts(*settings)["remarks"])
    assert not any("deterministic" in remark for remark in facts()["remarks"])

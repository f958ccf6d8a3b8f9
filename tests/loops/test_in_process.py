"""The page that tells a run names what there is, and a run goes in its order."""

import re
from importlib import import_module

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.lab.demo.simulators.point_reach_env import point_reach
from rlinf_async.loops import in_process
from rlinf_async.observe.reading.spans import read_spans
from tests.hosts.local_runs import small, small_policy

NAMED = sorted(set(re.findall(r"`((?:core|loops|wire|ray_runtime)(?:\.\w+)+)`", in_process.__doc__)))


@pytest.mark.parametrize("name", NAMED)
def test_every_name_on_the_page_is_there(name):
    parts, found = name.split("."), import_module("rlinf_async")
    for number, part in enumerate(parts, 1):
        if not hasattr(found, part):
            import_module(".".join(("rlinf_async", *parts[:number])))
        found = getattr(found, part)


def test_the_page_names_every_part_of_a_run():
    assert len(NAMED) > 10


@pytest.mark.parametrize("mode", ["off", "full"])
def test_a_batch_passes_the_gate_is_acted_trained_and_then_opens_the_gate_for_later_ones(mode, tmp_path):
    levels = AsyncConfig.from_mapping({"mode": mode, "advanced": {"normalization": "running"}})
    sizes = {"total_envs": 4, "horizon": 3, "rollout_epochs": 1}
    samples = {"global_batch_size": 12, "micro_batch_size": 6, "update_epoch": 1}
    settings = small(asynchrony=levels, **sizes, **samples)
    LocalTrainer(settings, point_reach(group_size=1, seed=0), small_policy, run_dir=tmp_path).run()
    spans = read_spans(tmp_path / "trace")
    lag = levels.max_staleness
    for batch in range(settings.batches):
        rollouts = [span for span in spans if span["kind"] == "rollout" and span["batch"] == batch]
        accepted = [span for span in spans if span["kind"] == "accept" and span["batch"] == batch]
        (finished,) = [span for span in spans if span["kind"] == "finish" and span["batch"] == batch]
        assert len(rollouts) == settings.plan.shards
        assert min(span["began"] for span in rollouts) < min(span["began"] for span in accepted)
        assert max(span["began"] for span in accepted) < finished["began"]
        later = [span for span in spans if span["kind"] == "rollout" and span["batch"] == batch + 1 + lag]
        assert all(span["began"] > finished["began"] for span in later)

"""What docs/extending.md shows is installed as it stands there, and trained with."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.extending_page import PAGE, PLAY, installed, python, trained, written

USE = """
import torch
from rlinf.models import get_model
from rlinf_async.entry_points import load_class
from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.plugin import register
from pathlib import Path

register()
assert issubclass(load_class("rlinf_async.workers", "env"), ShardedEnvWorker)
cfg = compose_config("points", [], Path("."))
env = load_class("rlinf_async.envs", cfg.env.train.env_class)(cfg.env.train, 8, 0, 2, None)
policy = get_model(cfg.actor.model)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The files of the page, and nothing else."""
    return written(tmp_path_factory.mktemp("my-points"))


@pytest.fixture(scope="module")
def site(page, tmp_path_factory) -> Path:
    """Where pip has installed the page's package."""
    pytest.importorskip("rlinf", reason="RLinf is not installed")
    pytest.importorskip("hatchling", reason="the page builds with it")
    return installed(page, tmp_path_factory.mktemp("site"))


def test_the_page_names_every_group_of_entry_points_and_every_name_of_a_class():
    text = PAGE.read_text()
    project = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text())["project"]
    for group, points in project["entry-points"].items():
        if not group.startswith("rlinf_async."):
            continue
        row = next(line for line in text.splitlines() if line.startswith(f"| `{group}`"))
        assert "any" in row or all(f"`{name}`" in row for name in points)


def test_the_worker_takes_the_place_of_ours_and_the_config_resolves(page, site):
    arguments = ("-m", "rlinf_async.cli", "explain", "--config-dir", ".", "-n", "points", "--json")
    facts = json.loads(python(page, site, *arguments))
    ours = facts["classes"]["rlinf.workers.env.env_worker.EnvWorker"]
    assert ours == "my_points.worker:AnnouncingEnvWorker"
    assert facts["levels"] == {"train": True, "rollout": True, "streamer": True}
    assert facts["shards"]["total"] == 2
    assert facts["batch"]["optimizer_steps_per_step"] == 2


def test_the_worker_is_one_of_ours_and_the_environment_and_the_model_play_a_rollout(page, site):
    python(page, site, "-c", USE + PLAY)


def test_the_smallest_host_trains_every_trajectory_once(page, site):
    output = python(page, site, str(PAGE.parents[1] / "examples" / "smallest_host.py"))
    assert "produced 20 = trained 20 + in flight 0 + 0 refused" in output
    assert output.count("'sum': 12") == 5


def test_a_host_of_the_kit_learns_and_trains_every_trajectory_once(page, site):
    """Numbers that begin at one and stay there lose one at each of four decisions."""
    output = python(page, site, str(PAGE.parents[1] / "examples" / "toy_host.py"))
    assert "produced 640 = trained 640 + in flight 0 + 0 refused" in output
    returns = [float(found) for found in re.findall(r"'return': (-?[\d.]+)", output)]
    assert len(returns) == 20
    assert sum(returns[-5:]) / 5 > returns[0] + 1


def test_the_local_host_trains_the_model_in_the_environment(page, site):
    output = python(page, site, "-m", "rlinf_async.cli", "train", "--config-dir", ".", "-n", "points_local")
    assert "produced 320 = trained 320 + in flight 0 + 0 refused" in output
    lines = (page / "runs" / "points_local" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["async/env_steps"] for line in lines] == [16 * 8 * 2] * 20
    summary = json.loads((page / "runs" / "points_local" / "summary.json").read_text())
    assert summary["batch_size"]["max"] <= 16


@pytest.mark.ray
def test_rlinf_trains_the_model_in_the_environment_by_the_worker(page, site):
    # Ray prints what workers say a moment later: the run must not have ended by then.
    output = trained(page, site, "-n", "points", "--worker-logs", "runner.max_epochs=20")
    assert "env worker 0: 2 shards of 8" in output
    assert "produced 320 = trained 320 + in flight 0 + 0 refused" in output
    lines = (page / "runs" / "points" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train/actor/grad_norm"] > 0 for line in lines] == [True] * 20

"""What docs/extending.md shows is installed as it stands there, and trained with."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
FILE = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)

USE = """
import torch
from rlinf.models import get_model
from rlinf_async.entry_points import load_class
from rlinf_async.hosts.rlinf.compose import compose_config
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.plugin import register
from pathlib import Path

register()
assert issubclass(load_class("rlinf_async.workers", "env"), ShardedEnvWorker)
cfg = compose_config("points", [], Path("."))
env = load_class("rlinf_async.envs", cfg.env.train.env_class)(cfg.env.train, 8, 0, 2, None)
policy = get_model(cfg.actor.model)
observation, _ = env.reset()
for decision in range(8):
    actions, result = policy.predict_action_batch(env_obs=observation, mode="train")
    scores = policy(forward_inputs=result["forward_inputs"])
    torch.testing.assert_close(scores["logprobs"], result["prev_logprobs"])
    assert scores["values"].shape == result["prev_values"].shape == (8, 1)
    (observation,), rewards, terminations, truncations, (info,) = env.chunk_step(actions)
    assert rewards.shape == terminations.shape == truncations.shape == (8, 2)
assert truncations[:, -1].all()
assert info["episode"]["success_once"].shape == (8,)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The files of the page, and nothing else."""
    directory = tmp_path_factory.mktemp("my-points")
    for match in FILE.finditer(PAGE.read_text()):
        path = directory / match["name"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(match["text"])
    return directory


@pytest.fixture(scope="module")
def site(page, tmp_path_factory) -> Path:
    """Where pip has installed the page's package."""
    pytest.importorskip("hatchling", reason="the page builds with it")
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(site), "."], check=True, cwd=page)
    return site


def python(page: Path, site: Path, *arguments: str) -> str:
    """The output of Python in the page's directory, where it imports the installed package only."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=page,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    python(page, site, "-c", USE)


def test_the_smallest_host_trains_every_trajectory_once(page, site):
    output = python(page, site, "smallest_host.py")
    assert "produced 20 = trained 20 + in flight 0 + 0 refused" in output
    assert output.count("'sum': 12") == 5


@pytest.mark.ray
def test_rlinf_trains_the_model_in_the_environment_by_the_worker(page, site):
    command = ("-m", "rlinf_async.cli", "train", "--config-dir", ".", "-n", "points", "--worker-logs")
    output = python(page, site, *command, "runner.max_epochs=2")
    assert "env worker 0: 2 shards of 8" in output
    assert "produced 32 = trained 32 + in flight 0 + 0 refused" in output
    lines = (page / "runs" / "points" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train/actor/grad_norm"] > 0 for line in lines] == [True, True]

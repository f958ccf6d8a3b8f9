"""The package of docs/extending.md, which knows no framework, trains under veRL."""

import json
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="veRL is not installed")
pytest.importorskip("hatchling", reason="the page builds with it")

from tests.extending_page import PLAY, installed, python, trained, written

pytestmark = pytest.mark.ray

USE = """
import torch
from omegaconf import OmegaConf
from rlinf_async.compose import compose_config
from rlinf_async.entry_points import load_class
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.verl.settings import section as section_of
from rlinf_async.hosts.verl.view import VerlView
from rlinf_async.hosts.workers.env_actor import EnvActor
from pathlib import Path

assert issubclass(load_class("rlinf_async.verl_workers", "env"), EnvActor)
cfg = compose_config("points_verl", [], Path("."))
section = OmegaConf.create(section_of(VerlView.of(plain(cfg)), "train"))
env = load_class("rlinf_async.envs", section.env_class)(section, 8, 0, 2, None)
policy = load_class("rlinf_async.models", cfg.vla.model.model_type)(cfg.vla.model, torch.float32)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("my-points"))


@pytest.fixture(scope="module")
def site(page, tmp_path_factory) -> Path:
    return installed(page, tmp_path_factory.mktemp("site"))


def test_the_environment_and_the_model_play_a_rollout(page, site):
    python(page, site, "-c", USE + PLAY)


def test_the_config_resolves(page, site):
    facts = json.loads(
        python(
            page, site, "-m", "rlinf_async.cli", "explain", "--config-dir", ".", "-n", "points_verl", "--json"
        )
    )
    assert facts["levels"] == {"train": True, "rollout": True, "streamer": True}


def test_verl_trains_the_model_in_the_environment_by_the_worker(page, site):
    output = trained(page, site, "-n", "points_verl", "--worker-logs")
    assert "env worker: 2 shards of 8" in output
    assert "produced 320 = trained 320 + in flight 0 + 0 refused" in output
    lines = (page / "runs" / "points_verl" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 20
    assert all(row["train/actor/grad_norm"] > 0 for row in rows)

"""On-policy distillation of RLinf's main branch, by its own script, with tiny models."""

import json
import os
from pathlib import Path

import pytest
import torch

from tests.checkouts import EMBODIED, checkout
from tests.runs.conftest import Runner
from tests.runs.test_checkouts import put_on_the_path
from tests.runs.test_checkouts import pytestmark as of_checkouts
from tests.runs.test_entry_script import run_script, users_config

pytestmark = [pytest.mark.ray, *of_checkouts]
TREE = "rlinf-main"
STEPS = 4
DISTILLED = (
    "algorithm.loss_type=opd",
    "algorithm.adv_type=opd",
    "algorithm.normalize_advantages=false",
    "algorithm.reward_type=action_level",
    "algorithm.logprob_type=token_level",
    "algorithm.update_epoch=1",
    "env.train.max_episode_steps=8",
    "env.train.max_steps_per_rollout_epoch=8",
    "rollout.pipeline_stage_num=2",
    "rollout.sampling_params.temperature_train=1.6",
    "rollout.enable_offload=true",
    "actor.enable_offload=true",
    "actor.model.model_type=openvla_oft",
    "actor.model.num_action_chunks=2",
    "actor.optim.lr=0.03",
    f"runner.max_epochs={STEPS}",
    f"runner.save_interval={STEPS}",
)


@pytest.fixture
def tree(runs: Runner, tmp_path: Path) -> Path:
    home = checkout(TREE)
    runs.declare("rlinf_async.models", "openvla_oft", "tests.runs.token_policy:build")
    declared = runs.environment["PYTHONPATH"]
    put_on_the_path(runs, home, tmp_path / "start")
    runs.environment["PYTHONPATH"] += os.pathsep + declared
    return home


def distil(runs: Runner, tree: Path, place: Path, *overrides: str) -> tuple[str, Path]:
    for name in ("student", "teacher"):
        (place / name).mkdir(parents=True)
    checkpoints = (
        f"actor.model.model_path={place}/student",
        f"+rollout.expert_model.model_path={place}/teacher",
    )
    theirs = users_config(place, "~async", *DISTILLED, *checkpoints)
    script = tree / EMBODIED / "train_embodied_agent.py"
    status, output = run_script(runs, script, theirs, *overrides)
    assert status == 0, output
    return output, place / "run"


def weights(directory: Path) -> dict[str, torch.Tensor]:
    (saved,) = directory.rglob(f"global_step_{STEPS}/**/full_weights.pt")
    return torch.load(saved, weights_only=True)


def test_level_2_trains_the_same_weights_as_rlinfs_own_loop(tree: Path, runs: Runner, tmp_path: Path) -> None:
    _, stock = distil(runs, tree, tmp_path / "stock", "+async.mode=off")
    # Batches of one shard, as RLinf's own: a product of other rows may differ in the last place.
    output, ours = distil(
        runs, tree, tmp_path / "ours", "+async.mode=rollout", "+async.rollout.max_batch_size=4"
    )
    assert "levels rollout" in output
    found, expected = weights(ours), weights(stock)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_every_level_at_once_distils(tree: Path, runs: Runner, tmp_path: Path) -> None:
    output, directory = distil(runs, tree, tmp_path / "run", "+async.mode=full", "actor.optim.lr=0.1")
    assert "levels train + rollout + streamer" in output
    assert "actor.enable_offload" in output
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == STEPS
    # Each rollout may lag by a step; one that begins after an update has no lag.
    assert max(line["async/staleness/max"] for line in lines) == 1
    distances = [line["train/actor/opd_reverse_kl"] for line in lines]
    assert distances[-1] < distances[0]

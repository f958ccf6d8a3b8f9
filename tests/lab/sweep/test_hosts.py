"""A sweep asks the host of a config what its keys are."""

from __future__ import annotations

import csv
from functools import partial

import pytest

pytest.importorskip("hydra", reason="Hydra is not installed")

from rich.console import Console

from rlinf_async.compose import compose_config
from rlinf_async.lab.sweep import command
from rlinf_async.lab.sweep.plan import Sweep, plan

SHORT = ("settings.total_envs=4", "settings.horizon=4", "settings.batches=3", "settings.micro_batch_size=8")
SEED = "actor_rollout_ref.actor.data_loader_seed"


def planned(name: str, tmp_path, *overrides: str, modes: str = "off,full", seeds: int = 1) -> Sweep:
    return plan(
        compose_config(name, overrides),
        config_name=name,
        config_dir=None,
        overrides=overrides,
        modes=modes,
        seeds=seeds,
        output=tmp_path / "sweep",
    )


in_one_process = partial(planned, "local/point_reach")
under_verl = partial(planned, "verl_metaworld_ppo_mlp")


@pytest.fixture
def verl() -> None:
    pytest.importorskip("verl", reason="veRL is not installed")


@pytest.mark.nightly
def test_a_run_in_one_process_is_swept_with_all_levels_off_measured_like_the_others(tmp_path):
    sweep = in_one_process(tmp_path, *SHORT, "settings.global_batch_size=16", modes="off,full")
    console = Console(record=True, width=80)
    assert command.run(sweep, console), console.export_text()
    lines = (tmp_path / "sweep" / "table.csv").read_text().splitlines()
    rows = {row["setting"]: row for row in csv.DictReader(lines)}
    assert list(rows) == ["off", "full"]
    for row in rows.values():
        assert float(row["env_steps_per_s"]) == pytest.approx(16 / float(row["step_s"]))
    assert (tmp_path / "sweep" / "off-seed0" / "metrics.jsonl").exists()
    assert "off: the same loops with every level off." in (tmp_path / "sweep" / "table.md").read_text()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run_dir=here", "run_dir=here is for the sweep to set; leave it out, and see --output"),
        ("settings.seed=3", "settings.seed=3 is for the sweep to set; leave it out, and see --seeds"),
        ("settings.batches=1", "settings.batches=1 leaves nothing to measure.*nearest: 2"),
        ("~settings.seed", "the config has no settings.seed"),
    ],
)
def test_keys_of_a_run_in_one_process_are_the_local_hosts(tmp_path, override, words):
    with pytest.raises(ValueError, match=words):
        in_one_process(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("vla.run_dir=here", "vla.run_dir=here is for the sweep to set; leave it out, and see --output"),
        (f"{SEED}=3", f"{SEED}=3 is for the sweep to set; leave it out, and see --seeds"),
        ("trainer.total_training_steps=1", "total_training_steps=1 leaves nothing to measure.*nearest: 2"),
        ("critic.enable=true", "the settings off, full cannot run: .*critic.enable"),
    ],
)
@pytest.mark.usefixtures("verl")
def test_keys_of_a_run_under_verl_are_verls(tmp_path, override, words):
    with pytest.raises(ValueError, match=words):
        under_verl(tmp_path, override)


@pytest.mark.usefixtures("verl")
def test_runs_under_verl_have_a_directory_and_a_seed_of_their_own_and_begin_at_the_beginning(tmp_path):
    sweep = under_verl(tmp_path, "trainer.default_local_dir=shared", modes="train", seeds=2)
    for cell, seed in zip(sweep.cells, (1234, 2234), strict=True):
        position = cell.command.index("--config-name")
        cfg = compose_config(cell.command[position + 1], cell.command[position + 2 :])
        assert cfg.vla.run_dir == str(tmp_path / "sweep" / f"train-seed{cell.seed}")
        assert cfg.env.train.seed == cfg.actor_rollout_ref.actor.data_loader_seed == seed
        assert cfg.trainer.resume_mode == "disable"
    assert "veRL has no loop of its own" in sweep.off


@pytest.mark.usefixtures("verl")
def test_a_checkpoint_that_is_named_is_what_all_runs_under_verl_begin_with(tmp_path):
    named = tmp_path / "global_step_2"
    (named / "actor").mkdir(parents=True)
    resumed = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={named}")
    (cell,) = under_verl(tmp_path, *resumed, modes="full").cells
    assert "trainer.resume_mode=disable" not in cell.overrides

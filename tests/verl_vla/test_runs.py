"""Real runs: verl-vla's LIBERO and GaussianActor, trained by veRL on a Ray cluster of its own."""

import os

import pytest

from tests.libero_assets import ASSETS
from tests.verl_vla.conftest import without_lerobot, without_libero

if why := without_libero() or without_lerobot():
    pytest.skip(why, allow_module_level=True)

from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE
from tests.runs.conftest import COMMAND, Run
from tests.runs_verl.conftest import ACTOR, VerlRunner, check_books

pytestmark = [pytest.mark.ray, pytest.mark.libero, pytest.mark.render]

SMALL = (
    "env.train.total_num_envs=4",
    "env.train.max_episode_steps=4",
    "env.train.libero.task_suite_name=libero_object",
    "env.train.libero.reset_warmup_steps=1",
    "env.train.libero.camera_heights=64",
    "env.train.libero.camera_widths=64",
    "vla.model.hidden_dims=[16,16]",
    "vla.model.config.latent_dim=8",
    "data.train_batch_size=4",
    f"{ACTOR}.ppo_mini_batch_size=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    "trainer.total_training_steps=3",
)
"""Four simulators, four decisions: 16 samples a step, two optimizer steps of two micro-batches."""


@pytest.fixture
def train(tmp_path):
    runner = VerlRunner(tmp_path)
    runner.environment |= {"PYTHONPATH": os.environ["PYTHONPATH"], ASSETS_VARIABLE: str(ASSETS)}

    def trained(*overrides: str) -> Run:
        place = f"vla.run_dir={tmp_path / 'run'}"
        process = runner.start(*COMMAND, "train", "-n", "verl_vla_libero_ppo", *SMALL, place, *overrides)
        output, _ = process.communicate(timeout=560)
        return Run(process.returncode, output, tmp_path / "run")

    yield trained
    runner.close()


def test_full_trains_it_by_ppo(train):
    run = train()
    check_books(run, trained=12)


def test_off_trains_it_by_ppo(train):
    check_books(train("async.mode=off"), trained=12, staleness=0)


def test_groups_are_reset_together_and_without_success_nothing_is_learned(train):
    run = train(
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.rollout.n=2",
        "data.train_batch_size=2",
        f"{ACTOR}.ppo_mini_batch_size=1",
        "vla.model.add_value_head=false",
    )
    assert run.status == 0, run.output
    assert run.summary["trajectories"]["trained"] == 12
    assert [line["env/success_once"] for line in run.metrics] == [0, 0, 0]
    assert [line["train/actor/grad_norm"] for line in run.metrics] == [0, 0, 0]
    assert [line["train/groups_without_signal"] for line in run.metrics] == [2, 2, 2]

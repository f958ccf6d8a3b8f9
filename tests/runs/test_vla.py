"""A vision-language-action policy in full mode, on rendered Meta-World and on LIBERO."""

import pytest
from omegaconf import OmegaConf

from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE
from rlinf_async.observe.reading.spans import read_spans
from tests.libero_assets import ASSETS, needs_assets, needs_libero
from tests.runs.conftest import Runner

pytestmark = pytest.mark.ray


@pytest.mark.nightly
@pytest.mark.render
def test_a_vla_trains_on_rendered_metaworld_in_full_mode(runs: Runner, gl: str) -> None:
    runs.environment["MUJOCO_GL"] = gl
    run = runs.train(
        "metaworld_ppo_vla",
        "runner.max_epochs=2",
        "env.train.total_num_envs=4",
        "env.train.max_episode_steps=10",
        "actor.micro_batch_size=4",
        "actor.global_batch_size=8",
        small=False,
    )
    assert run.status == 0, run.output
    assert run.summary["trajectories"]["trained"] == 8
    assert run.summary["staleness"]["max"] <= 1
    assert run.metrics[-1]["train/actor/grad_norm"] > 0


@pytest.mark.libero
@pytest.mark.render
@needs_libero
@needs_assets
def test_a_vla_trains_on_libero_in_full_mode(runs: Runner, gl: str) -> None:
    runs.environment |= {"MUJOCO_GL": gl, ASSETS_VARIABLE: str(ASSETS)}
    run = runs.train(
        "libero_object_ppo_vla",
        "runner.max_epochs=2",
        "env.train.max_episode_steps=10",
        "actor.micro_batch_size=2",
        "actor.global_batch_size=4",
        small=False,
    )
    assert run.status == 0, run.output
    assert run.summary["trajectories"]["trained"] == 4
    # Nothing is solved in four tries: the learner steps, on returns of zero.
    assert run.metrics[-1]["train/actor/grad_norm"] >= 0
    # LiberoEnv draws its tasks anew: whichever of the two is free collects for the next place.
    assert OmegaConf.load(run.directory / "config.yaml")["async"].advanced.balance == "tasks"
    rollouts = [span for span in read_spans(run.directory / "trace") if span["kind"] == "rollout"]
    assert sorted((span["batch"], span["place"]) for span in rollouts) == [(0, 0), (0, 1), (1, 0), (1, 1)]

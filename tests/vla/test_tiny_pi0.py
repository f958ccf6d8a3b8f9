"""The demo's pi0: RLinf's class, its start, and a run in which it learns."""

import os
from pathlib import Path

import pytest
import torch

from rlinf_async.compose import compose_config
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.async_block import plain
from rlinf_async.lab.demo.simulators.metaworld_expert import demonstrate
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats
from rlinf_async.lab.demo.warm_start import clone_of, cloning_epochs
from rlinf_async.lab.demo.warm_start_settings import WarmStart
from tests.runs.conftest import COMMAND, Run
from tests.vla.sources import on_path, why_missing

on_path("openpi", "src")
MISSING = why_missing("jax", "openpi")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
CONFIG = "metaworld_ppo_pi0"
ENVS = 6
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def section():
    return lookup(plain(compose_config(CONFIG, [])), "actor.model")


@pytest.fixture(scope="module")
def policy(section):
    from rlinf_async.lab.demo.policies.tiny_pi0 import build_tiny_pi0

    torch.manual_seed(0)
    return build_tiny_pi0(section, torch.float32).eval()


def shown(seed=0):
    states = torch.randn(ENVS, 39, generator=torch.Generator().manual_seed(seed))
    return {"states": states, "task_descriptions": ["press"] * ENVS, "main_images": None}


def test_it_is_rlinfs_class_and_scores_what_it_drew(policy):
    from rlinf.models.embodiment.openpi.openpi_action_model import OpenPi0ForRLActionPrediction

    assert isinstance(policy, OpenPi0ForRLActionPrediction)
    actions, drawn = policy.predict_action_batch(shown())
    assert actions.shape == (ENVS, 5, 4)
    scored = policy(forward_inputs=drawn["forward_inputs"], compute_values=True)
    assert torch.allclose(scored["logprobs"], drawn["prev_logprobs"], atol=1e-5)
    assert drawn["prev_logprobs"].abs().min() > 0


def test_evaluation_adds_no_noise_between_denoise_steps(policy):
    for given in ({"mode": "eval"}, {"do_sample": False, "temperature": 0.0}):
        _, drawn = policy.predict_action_batch(shown(), **given)
        assert not drawn["prev_logprobs"].any()


def test_hand_object_and_goal_are_seen_and_nothing_else(policy):
    def velocity(states):
        torch.manual_seed(1)
        return policy.predict_action_batch({**shown(), "states": states}, mode="eval")[0]

    states = shown()["states"]
    for index in range(39):
        changed = states.clone()
        changed[:, index] += 1
        assert torch.equal(velocity(changed), velocity(states)) == (7 <= index < 36), index


def test_only_what_rlinf_trains_is_cloned_and_the_loss_falls(section):
    settings = WarmStart(model=section, learning_rate=1e-3, batch_size=64, max_epochs=3)
    shown = demonstrate(settings.task_name, episodes=2, steps=100, seed=0)
    stats = ObservationStats.of(shown.states)
    torch.manual_seed(0)
    clone = clone_of(settings)
    before = {name: tensor.clone() for name, tensor in clone.state_dict().items()}
    states, actions = (torch.from_numpy(each) for each in shown.chunks(5))
    states = torch.from_numpy(stats.normalise(states.numpy()))

    def loss():
        torch.manual_seed(1)
        with torch.no_grad():
            return clone.loss(states, actions).item()

    first = loss()
    *_, after = cloning_epochs(settings, shown, stats, clone)
    assert loss() < 0.8 * first
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any("paligemma." in name or "value_head" in name for name in changed)


@pytest.mark.ray
@pytest.mark.nightly
def test_success_rises_in_the_demo(runs):
    found = os.environ["PYTHONPATH"].split(os.pathsep)
    path = (ROOT / "tests" / "vla" / "openpi_site", *found, ROOT, ROOT / "rlinf_async" / "_hydra")
    runs.environment["PYTHONPATH"] = os.pathsep.join(str(Path(each).resolve()) for each in path)
    directory = runs.directory / "run"
    process = runs.start(*COMMAND, "train", "--config-name", CONFIG, f"runner.logger.log_path={directory}")
    output, _ = process.communicate(timeout=3000)
    run = Run(process.returncode, output, directory)
    assert run.status == 0, run.output
    solved = [line["env/success_once"] for line in run.metrics]
    assert sum(solved[:3]) / 3 < 0.7
    assert sum(solved[-10:]) / 10 > 0.8

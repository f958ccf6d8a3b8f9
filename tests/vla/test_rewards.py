"""RLinf's ResNet reward model, held by its own reward worker, in runs of RLinf's loop and of ours on Ray."""

import os
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

import torch

from tests.runs.conftest import Run, Runner

if not any((Path(place) / "torchvision").is_dir() for place in os.environ.get("PYTHONPATH", "").split(":")):
    pytest.skip("ResNets are of torchvision, which these packages lack", allow_module_level=True)

ROOT = Path(__file__).parents[2]
LEVELS = {
    "full": ("async.rollout.shards=2",),
    "off": ("cluster.component_placement.env.placement='0:0-1'",),
}
"""Two shards of an env worker have the environments that two env workers of RLinf's loop have."""
STEPS, ENVS, DECISIONS = 2, 8, 4
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The weights of a reward model, as RLinf saves them."""
    from omegaconf import OmegaConf
    from rlinf.models.embodiment.reward import get_reward_model_class

    import tests.vla.tiny_openvla_oft  # noqa: F401  # declares operators that torchvision expects

    torch.manual_seed(5)
    section = {"arch": "resnet18", "pretrained": False, "image_size": [3, 32, 32], "precision": "fp32"}
    made = get_reward_model_class("resnet")(OmegaConf.create(section)).eval()
    place = tmp_path_factory.mktemp("reward") / "resnet.pt"
    torch.save(made.state_dict(), place)
    return place


def train(runs: Runner, model: Path, mode: str, *overrides: str) -> Run:
    found = os.environ["PYTHONPATH"].split(":")
    path = (ROOT / "tests" / "vla" / "site", *found, ROOT, ROOT / "rlinf_async" / "_hydra")
    runs.environment |= {
        "PYTHONPATH": ":".join(str(Path(each).resolve()) for each in path),
        "RLINF_EXT_MODULE": "tests.vla.reward_on_cpu",
    }
    run = runs.train(
        "bench/emulated",
        f"async.mode={mode}",
        f"env.train.total_num_envs={ENVS}",
        f"env.train.max_episode_steps={DECISIONS * 10}",
        "env.train.service.decision_s=0.01",
        "algorithm.update_epoch=1",
        "actor.micro_batch_size=8",
        "actor.global_batch_size=16",
        "actor.model.service.weights_mb=1",
        f"runner.max_epochs={STEPS}",
        "++reward={use_reward_model: true, group_name: RewardGroup, reward_mode: per_step,"
        " reward_weight: 2.0, env_reward_weight: 0.0, model: {model_type: resnet, arch: resnet18,"
        f" pretrained: false, image_size: [3, 32, 32], precision: fp32, model_path: {model}}}}}",
        "+cluster.component_placement.reward={node_group: node, placement: 0}",
        *LEVELS[mode],
        *overrides,
        run_dir=mode,
        small=False,
    )
    assert run.status == 0, run.output
    return run


@pytest.mark.parametrize("mode", ["per_step", "terminal"])
def test_a_reward_model_of_rlinfs_gives_the_rewards_that_it_gives_in_rlinfs_own_loop(runs, model, mode):
    how = f"reward.reward_mode={mode}"
    ours, theirs = (train(runs, model, levels, how) for levels in ("full", "off"))
    for name in ("env/reward_model_output", "rollout/rewards"):
        expected = theirs.metrics[0][name]
        assert expected > 0
        assert [step[name] for step in ours.metrics] == pytest.approx([expected] * STEPS, rel=1e-5)
    assert f"produced {STEPS * ENVS} = trained {STEPS * ENVS} + in flight 0" in ours.output

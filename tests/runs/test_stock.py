"""With all levels off a run through the plugin is RLinf's own run, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlinf_async.compose import compose_config
from tests.runs.conftest import SMALL, Runner
from tests.runs.seeded import PLUGIN, STOCK

pytestmark = pytest.mark.ray
SCRIPT = Path(__file__).with_name("stock_script.py")
CLASSES = "CLASSES EnvWorker MultiStepRolloutWorker EmbodiedFSDPActor EmbodiedRunner"
GROUPS = ("ActorGroup", "EnvGroup", "RolloutGroup")
CONFIG = "metaworld_ppo_mlp"
STEPS = (1, 2, 3)

# The extension module is named to workers by the config, as RLinf allows, so that it is the same on both
# sides and RLINF_EXT_MODULE of the driver is the plugin's to set.
EXTENSION = (
    "+cluster.node_groups=[{label:here,node_ranks:0,ignore_hardware:true,"
    "env_configs:[{node_ranks:0,env_vars:[{RLINF_EXT_MODULE:tests.runs.seeded}]}]}]",
    *(f"cluster.component_placement.{part}.node_group=here" for part in ("actor", "env", "rollout")),
)
# Four decisions seldom solve a task; only the dense reward tells one trajectory from another.
OVERRIDES = ("env.train.reward_kind=dense", "runner.save_interval=1", *EXTENSION)

CHANGING = (
    "env/return",
    "rollout/advantages_max",
    "train/actor/grad_norm",
    "train/actor/policy_loss",
    "train/actor/total_loss",
)

LONGEST_S = 600
Scalars = dict[str, list[tuple[int, float]]]


@pytest.mark.timeout(2 * LONGEST_S)
def test_all_levels_off_equals_rlinf_without_the_plugin_bit_for_bit(runs: Runner) -> None:
    stock, ours = run_stock(runs), run_through_plugin(runs)
    assert scalars(ours) == scalars(stock)
    for step in STEPS:
        assert_equal(weights(ours, step), weights(stock, step))

    # Numbers that are missing, or that never change, would be equal too.
    logged = scalars(stock)
    for name in CHANGING:
        assert [step + 1 for step, _ in logged[name]] == [*STEPS]
        assert len({value for _, value in logged[name]}) == len(STEPS), name
    for step in STEPS[:-1]:
        assert moved(weights(stock, step), weights(stock, step + 1))


def run_stock(runs: Runner) -> Path:
    """Run RLinf in a driver, and with workers, that have none of the plugin's hooks."""
    directory = runs.directory / "stock"
    overrides = [*SMALL, *OVERRIDES, f"runner.logger.log_path={directory}", "~async"]
    OmegaConf.save(compose_config(CONFIG, overrides), runs.directory / "stock.yaml")
    marks = take_side(runs, "stock")
    process = runs.start(sys.executable, str(SCRIPT), str(runs.directory / "stock.yaml"))
    output, _ = process.communicate(timeout=LONGEST_S)  # each of its workers imports by itself
    assert process.returncode == 0, output
    assert CLASSES in output
    assert_hooks(marks, STOCK)
    return directory


def run_through_plugin(runs: Runner) -> Path:
    marks = take_side(runs, "plugin")
    run = runs.train(CONFIG, *OVERRIDES, "async.mode=off", run_dir="plugin")
    assert run.status == 0, run.output
    assert_hooks(marks, PLUGIN)
    return run.directory


def take_side(runs: Runner, side: str) -> Path:
    """Tell `tests.runs.seeded` which side workers are on, and where to leave their marks."""
    marks = runs.directory / f"marks_of_{side}"
    marks.mkdir()
    root = str(Path(__file__).parents[2])
    runs.environment |= {"PYTHONPATH": root, "SEEDED_SIDE": side, "SEEDED_MARKS": str(marks)}
    return marks


def assert_hooks(marks: Path, module: str) -> None:
    found = {mark.name: mark.read_text() for mark in marks.iterdir()}
    assert found == {f"{group}-0": module for group in GROUPS}


def scalars(directory: Path) -> Scalars:
    """Everything that a run has logged, by name, with its steps; but for how long things took."""
    events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if not name.startswith("time/")]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def weights(directory: Path, step: int) -> dict[str, torch.Tensor]:
    saved = directory / CONFIG / "checkpoints" / f"global_step_{step}" / "actor"
    return torch.load(saved / "model_state_dict" / "full_weights.pt", weights_only=True)


def assert_equal(ours: dict[str, torch.Tensor], stock: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == stock.keys()
    different = [name for name, tensor in stock.items() if not torch.equal(ours[name], tensor)]
    assert not different


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    """Whether every tensor has changed."""
    return not any(torch.equal(before[name], tensor) for name, tensor in after.items())

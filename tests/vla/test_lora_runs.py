"""A run with RLinf's LoRA through Ray, by RLinf's unmodified script, and another that goes on from it."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("rlinf", reason="RLinf is not installed")

from tests.runs.conftest import Run, Runner
from tests.vla.families import LORA
from tests.vla.seen_weights import FOLDER, seen
from tests.vla.test_runs import pytestmark as needs_libero
from tests.vla.test_runs import train

pytestmark = [*needs_libero, pytest.mark.nightly]
(GR00T,) = (family for family in LORA if family.name.startswith("gr00t"))
"""Of the models that have a critic it is the one beside whose adapters nothing is trained."""
STEPS = 2


def watched(runs: Runner, place: Path, run_dir: str, *overrides: str) -> tuple[Run, list[dict]]:
    """A run in `full` that saves every step, and what it has published."""
    folder = runs.directory / f"{run_dir}-weights"
    folder.mkdir()
    runs.environment |= {"RLINF_EXT_MODULE": "tests.vla.seen_weights", FOLDER: str(folder)}
    made = train(
        runs, GR00T, place, "+async.mode=full", "runner.save_interval=1", *overrides, run_dir=run_dir
    )
    assert made.status == 0, made.output
    return made, seen(folder)


def saved(run: Run, step: int) -> Path:
    return run.directory / GR00T.config / "checkpoints" / f"global_step_{step}"


def weights(run: Run, step: int) -> dict[str, torch.Tensor]:
    return torch.load(saved(run, step) / "actor" / "model_state_dict" / "full_weights.pt", weights_only=True)


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """The names of weights that are in both, and differ."""
    both = before.keys() & after.keys()
    return {name for name in both if not torch.equal(before[name], after[name].to(before[name].dtype))}


@pytest.mark.skipif(GR00T.missing is not None, reason=str(GR00T.missing))
def test_adapters_alone_are_trained_and_published_and_a_resumed_run_has_them(runs, gl, tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    GR00T.write(place)
    runs.environment["MUJOCO_GL"] = gl
    first, published = watched(runs, place, "first", f"runner.max_epochs={STEPS}")
    assert f"produced {2 * STEPS} = trained {2 * STEPS} + in flight 0 + 0 refused" in first.output
    assert all(line["train/actor/grad_norm"] > 0 for line in first.metrics)

    everything, *later = published
    adapters = {name for name in everything if ".lora_" in name}
    assert adapters
    assert later
    assert all(each.keys() == adapters for each in later)
    moved = changed(everything, weights(first, STEPS))
    assert moved <= adapters
    assert {name.split(".")[-3] for name in moved} == {"lora_A", "lora_B"}

    second, published = watched(
        runs, place, "second", f"runner.max_epochs={STEPS + 1}", f"runner.resume_dir={saved(first, STEPS)}"
    )
    assert [line["step"] for line in second.metrics] == [STEPS + 1]
    assert published[0].keys() == everything.keys()
    assert changed(published[0], weights(first, STEPS)) == set()
    assert changed(weights(first, STEPS), weights(second, STEPS + 1)) <= adapters

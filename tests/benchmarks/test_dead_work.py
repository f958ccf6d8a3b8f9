"""RLinf's environments that leave out what nobody looks at show the same as RLinf's own, to the bit."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_async.hosts.rlinf.skipped_work import EXAMINED_SIMULATORS
from rlinf_async.lab.demo.simulators.libero import missing_libero
from rlinf_async.lab.demo.simulators.rendering import installed_backend
from rlinf_async.lab.demo.simulators.vulkan import DRIVERS_VARIABLE, SOFTWARE_DRIVER
from tests.libero_assets import MISSING, rendering

pytest.importorskip("rlinf", reason="these are environments of RLinf")
pytest.importorskip("gym", reason="RLinf's LIBERO is an environment of gym")

ROOT = Path(__file__).parents[2]
A_THOUSAND = pytest.mark.nightly
OF_SIMULATOR = {"metaworld": pytest.mark.render, "maniskill": pytest.mark.maniskill}


def compared(*arguments: str, what: str = "frames") -> dict:
    environ = {**os.environ, **rendering()}
    if SOFTWARE_DRIVER.is_file():
        environ.setdefault(DRIVERS_VARIABLE, str(SOFTWARE_DRIVER))
    command = [sys.executable, "-m", f"benchmarks.dead_work.{what}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout[done.stdout.index("{\n") :])


@pytest.fixture
def libero():
    if problem := missing_libero() or MISSING:
        pytest.skip(problem)


@pytest.fixture
def maniskill():
    if importlib.util.find_spec("mani_skill") is None:
        pytest.skip("the package mani_skill is not installed (see the `maniskill` extra)")
    if not SOFTWARE_DRIVER.is_file():
        pytest.skip(f"no software Vulkan driver at {SOFTWARE_DRIVER}")


@pytest.fixture
def metaworld():
    pytest.importorskip("metaworld", reason="Meta-World is not installed")
    if installed_backend() is None:
        pytest.skip("neither the EGL nor the OSMesa library is installed")


@pytest.mark.libero
@pytest.mark.usefixtures("libero")
@pytest.mark.parametrize(
    ("decisions", "horizon"),
    [(2, 7), pytest.param(100, 25, marks=A_THOUSAND)],
)
def test_libero_with_episodes_that_end_and_are_reset_in_a_decision(decisions, horizon):
    # A reset builds a simulator anew, for seconds. The short one has two; the second is an episode that ends.
    resets = "1" if decisions == 2 else "2"
    sizes = ("--size", "64", "--chunk", "5", "--decisions", str(decisions), "--resets", resets)
    result = compared("libero", *sizes, "--auto-reset", "--horizon", str(horizon))
    assert result["equal"], result["difference"]
    assert result["frames"]["left_out"] > result["frames"]["drawn"]


@pytest.mark.libero
@pytest.mark.nightly
@pytest.mark.usefixtures("libero")
def test_libero_over_a_thousand_steps_without_a_reset_of_its_own():
    result = compared("libero", "--size", "64", "--decisions", "50", "--resets", "2", "--envs", "2")
    assert result["equal"], result["difference"]
    # Two environments: 17 frames of the first reset, 1 of the second, 1 of each decision.
    assert result["frames"] == {"drawn": 2 * (17 + 1 + 100), "left_out": 2 * (16 + 900)}


def resetting(simulator: str, *tasks: str):
    """A case of the first task for two decisions, and one of each for a hundred."""
    mark = OF_SIMULATOR[simulator]
    return [
        pytest.param(simulator, tasks[0], 2, marks=mark),
        *(pytest.param(simulator, task, 100, marks=[mark, A_THOUSAND]) for task in tasks),
    ]


@pytest.mark.parametrize(
    ("simulator", "task", "decisions"),
    [
        *resetting("metaworld", "reach-v3", "button-press-topdown-v3", "door-open-v3"),
        *resetting("maniskill", "PickCube-v1", "PushCube-v1", "StackCube-v1"),
    ],
)
def test_episodes_that_end_and_are_reset_in_a_decision(request, simulator, task, decisions):
    request.getfixturevalue(simulator)  # skips where the simulator is not installed
    sizes = ("--size", "64", "--chunk", "5", "--decisions", str(decisions), "--resets", "2")
    result = compared(simulator, "--task", task, *sizes, "--auto-reset", "--horizon", "7")
    assert result["equal"], result["difference"]
    assert result["frames"]["left_out"] == 2 * decisions * 4


def assert_playing_alike(simulator: str, frames: tuple[str, ...], *sizes: str) -> None:
    found = compared(simulator, "--frames", *frames, *sizes, what="standing")
    for name in frames:
        assert (found[name]["stock_and_stock"], found[name]["stock_and_standing"]) == (None, None), name
    assert simulator in EXAMINED_SIMULATORS


@pytest.mark.render
@pytest.mark.usefixtures("metaworld")
@pytest.mark.parametrize("sizes", [("--once",), pytest.param((), marks=pytest.mark.nightly)])
def test_simulators_of_metaworld_that_play_do_not_see_that_others_are_left_alone(sizes):
    assert_playing_alike("metaworld", ("all", "last"), "--size", "64", *sizes)


@pytest.mark.libero
@pytest.mark.usefixtures("libero")
@pytest.mark.parametrize(
    ("frames", "sizes"),
    [
        (("last",), ("--rollouts", "2", "--envs", "2", "--once")),
        pytest.param(("all", "last"), (), marks=pytest.mark.nightly),
    ],
)
def test_simulators_of_libero_that_play_do_not_see_that_others_are_left_alone(frames, sizes):
    assert_playing_alike("libero", frames, "--size", "64", *sizes)

"""Calls name methods of other processes by attributes of their classes: a typo is found without a run."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf_async.ray_runtime import handles
from rlinf_async.ray_runtime.handles import remote_method
from rlinf_async.ray_runtime.processes.coordinator import Coordinator

DRIVER = Path(handles.__file__).parent / "driver"
CALL_BY_STRING = re.compile(r"\.(?:call|run|run_on_living)\(\s*[\w\"]+,\s*\"")

CALLS = """
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.processes.coordinator import Coordinator


def call(fleet: Fleet) -> None:
    fleet.run("coordinator", Coordinator.pop_trained, 3)
    fleet.run("coordinator", Coordinator.close_weight)
    fleet.run("coordinator", Coordinator.pop_trained, "three")
    fleet.run("coordinator", Coordinator.pop_trained)
"""


def test_a_method_is_found_by_its_attribute_or_by_the_name_of_a_framework_s_own():
    actor = SimpleNamespace(close_weights="closes", init_worker="builds")
    assert remote_method(actor, Coordinator.close_weights) == "closes"
    assert remote_method(actor, "init_worker") == "builds"


def test_no_call_of_the_driver_names_a_method_by_a_string():
    sources = {path.name: path.read_text() for path in DRIVER.glob("*.py")}
    assert [name for name, text in sources.items() if CALL_BY_STRING.search(text)] == []


@pytest.mark.nightly  # mypy reads torch anew: a minute
def test_mypy_finds_a_misspelt_method_and_a_wrong_or_missing_argument(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "calls.py").write_text(CALLS)
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", tmp_path / "cache", tmp_path / "calls.py"],
        cwd=DRIVER.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert lines == [8, 9, 10], done.stdout + done.stderr

"""A training run imports nothing of `rlinf_async.lab`; import-linter sees imports within functions too."""

from importlib.metadata import entry_points

import pytest

from rlinf_async.cli import application
from rlinf_async.entry_points import find
from rlinf_async.extras import is_here
from tests.fresh import printed

RUN = {
    "rlinf": ("doorways", "workers", "channels", "runners"),
    "verl": ("verl_workers",),
}
"""Groups of entry points whose classes a run loads, beside its host: each worker's and each channel's."""
MODULES = {
    "rlinf": ("rlinf_async.plugin", "rlinf_async.hosts.rlinf.train", "rlinf_async.supervise"),
    "verl": ("rlinf_async.hosts.verl.plugin", "rlinf_async.hosts.verl.task_runner", "rlinf_async.supervise"),
}

in_the_main_environment = pytest.mark.skipif(
    is_here("verl"), reason="commands load no framework: once is enough"
)

LOADED = "print(sorted(name for name in sys.modules if name.split('.')[:2] == ['rlinf_async', 'lab']))"
LOAD = """
import importlib, sys
from importlib.metadata import EntryPoint
for module in {modules}:
    importlib.import_module(module)
for name, value, group in {points}:
    EntryPoint(name, value, group).load()
"""
COMMAND = """
import sys
from typer.testing import CliRunner
from rlinf_async import cli
from rlinf_async.entry_points import find
from rlinf_async.extras import is_here
result = CliRunner().invoke(cli.app, [{command!r}, "--help"])
assert result.exit_code == 0, result.output
"""


def loaded_by(code: str) -> str:
    """The modules of the lab that a process has loaded which ran `code`."""
    return printed(f"{code}\n{LOADED}", ground="import typer, rich.console, omegaconf, hydra").strip()


@pytest.mark.parametrize("host", ["rlinf", "verl"])
def test_a_run_loads_nothing_of_the_lab_in_its_driver_and_its_workers(host):
    if not is_here(host):
        pytest.skip(f"{host} is not installed")
    points = [(host, find("rlinf_async.hosts", host).value, "rlinf_async.hosts")]
    for group in RUN[host]:
        points += [(one.name, one.value, one.group) for one in entry_points(group=f"rlinf_async.{group}")]
    assert "env" in {name for name, *_ in points}
    assert loaded_by(LOAD.format(modules=MODULES[host], points=points)) == "[]"


@in_the_main_environment
@pytest.mark.parametrize("command", ["train", "explain", "configs", "doctor", "status"])
def test_a_command_that_is_not_of_the_lab_loads_nothing_of_it(command):
    assert loaded_by(COMMAND.format(command=command)) == "[]"


@in_the_main_environment
def test_a_command_of_the_lab_is_found_by_its_entry_point():
    assert "rlinf_async.lab.commands.reading" in loaded_by(COMMAND.format(command="report"))
    assert {point.name for point in entry_points(group=application.COMMANDS_GROUP)} >= {
        "bench",
        "plan",
        "sweep",
        "trace",
    }

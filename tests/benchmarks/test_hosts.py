"""The demo on both hosts: what is run, and what is said of it."""

from pathlib import Path

import pytest

from benchmarks.schedules import hosts
from benchmarks.schedules.hosts import Cell, cells, name, table
from rlinf_async.compose import compose_config
from rlinf_async.lab.bench.sides import SIDES_BY_HOST


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The names of the runs that are made; none takes any time."""
    made = []
    monkeypatch.setattr(hosts, "RESULTS_FILE", tmp_path / "hosts.json")
    monkeypatch.setattr(Cell, "run", lambda cell: made.append(name(cell)) or [1.0] * cell.steps)
    return made


def test_a_repetition_is_complete_before_the_next_and_no_run_is_made_twice(told):
    hosts.main(repetitions=2, steps=4, at_most=5)
    assert told == ["rlinf-off-0-4", "verl-off-0-4", "rlinf-full-0-4", "verl-full-0-4", "rlinf-off-1-4"]
    hosts.main(repetitions=2, steps=4)
    assert len(told) == len(set(told)) == 8


def test_ratios_are_of_medians_within_a_host_and_a_repetition_and_leave_out_the_first_steps():
    seconds = {"off": (2.0, 4.0), "full": (1.0, 1.0)}
    measured = [cell for cell in cells(2, 5) if cell.host == "verl"]
    results = {name(cell): [9.0, 9.0] + [seconds[cell.mode][cell.repetition]] * 3 for cell in measured}
    lines = table(results, measured).splitlines()
    assert "| verl | off | 3.00 s [2.00, 4.00] | 1.00 x | 2 |" in lines
    assert "| verl | full | 1.00 s | 3.00 x [2.00, 4.00] | 2 |" in lines
    assert "| rlinf | off | – | – | 0 |" in lines


@pytest.mark.parametrize("host", hosts.HOSTS_BY_NAME)
def test_every_key_that_is_set_is_one_of_the_config(host):
    pytest.importorskip(host, reason="its configs are its own")
    own = SIDES_BY_HOST[host].run(directory=Path("somewhere"), steps=3)
    compose_config(hosts.HOSTS_BY_NAME[host].config, [*own, "async.mode=off"])

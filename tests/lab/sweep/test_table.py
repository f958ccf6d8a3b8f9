import csv

import pytest
from rich.console import Console

from rlinf_async.lab.sweep.settings import LADDER_SETTINGS, parse_settings
from rlinf_async.lab.sweep.table import Outcomes, as_csv, markdown, rows, screen
from tests.lab.sweep.fakes import run

OFF, TRAIN, BOTH, _, FULL = LADDER_SETTINGS


def found(rates):
    """Outcomes by setting, a throughput per seed."""
    return {setting: Outcomes(dict(enumerate(map(run, values)))) for setting, values in rates.items()}


def row(made, setting):
    return next(one for one in made if one.setting == setting.name)


def test_the_increase_is_that_of_the_mean_throughput_over_off():
    made = rows(found({OFF: [100.0, 300.0], FULL: [500.0, 300.0]}))
    throughput = row(made, FULL).quantities["env_steps_per_s"]
    assert (throughput.middle, throughput.low, throughput.high) == (400.0, 300.0, 500.0)
    assert row(made, FULL).increase == pytest.approx(1.0)
    assert row(made, OFF).increase is None


def test_the_increase_is_taken_on_the_seeds_that_both_have():
    results = found({OFF: [100.0, 300.0], FULL: [150.0]})
    assert row(rows(results), FULL).increase == pytest.approx(0.5)


def test_without_off_there_is_no_increase():
    assert rows(found({FULL: [100.0]}))[0].increase is None
    assert row(rows(found({OFF: [], FULL: [100.0]})), FULL).increase is None


def test_a_quantity_that_some_seeds_do_not_report_is_of_those_that_do():
    results = {FULL: Outcomes({0: run(1.0, success=None), 1: run(1.0, success=0.4)})}
    assert rows(results)[0].quantities["success"].middle == 0.4


def test_the_screen_shows_rounded_numbers_with_their_range():
    console = Console(record=True, width=80)
    made = rows(found({OFF: [100.0, 300.0], FULL: [512.4, 300.0]}))
    console.print(screen(made))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["off", "200", "(100..300)", "-", "2.00", "1.50", "0.50", "50%", "2"] in lines
    assert ["full", "406", "(300..512)", "+103%", "2.00", "1.50", "0.50", "50%", "2"] in lines


def test_the_screen_fits_into_eighty_columns_without_breaking_a_line():
    console = Console(record=True, width=80)
    settings = parse_settings("all")
    console.print(screen(rows(found({setting: [11111.0, 88888.0] for setting in settings}))))
    text = console.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert len([line for line in text.splitlines() if line.strip()]) == 3 + len(settings)
    assert text.count("50000 (11111..88888)") == len(settings)


def test_a_setting_that_failed_is_shown_as_failed_and_one_that_has_not_been_run_is_not():
    made = rows({OFF: Outcomes({}, ("off seed 0 failed: no fuel; log: a",)), FULL: Outcomes({})})
    text = markdown(made, title="some", off="off: theirs.")
    assert "| off | failed | - |" in text
    assert "| full | - | - |" in text
    assert "* off seed 0 failed: no fuel; log: a" in text


def test_markdown_explains_its_columns():
    text = markdown(rows(found({OFF: [100.0], FULL: [150.0]})), title="some, seeds: 1", off="off: theirs.")
    assert text.startswith("# some, seeds: 1\n\n| setting | env steps/s | over off |")
    assert "| full | 150 | +50% | 2.00 | 1.50 | 0.50 | 50% |" in text
    assert "first step is left out" in text
    assert text.endswith("* off: theirs.\n")


def test_values_are_written_unrounded():
    results = found({OFF: [100.0, 200.0], FULL: [1000 / 3, 1000 / 3]})
    lines = list(csv.DictReader(as_csv(rows(results)).splitlines()))
    assert float(lines[1]["env_steps_per_s"]) == pytest.approx(1000 / 3)
    assert float(lines[1]["increase_percent"]) == pytest.approx(100 * (1000 / 150 / 3 - 1))
    facts = [lines[0][key] for key in ("setting", "seeds", "failed", "env_steps_per_s_max")]
    assert facts == ["off", "2", "0", "200.0"]
    assert lines[0]["increase_percent"] == ""

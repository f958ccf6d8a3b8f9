"""The comparison of numbers of shards: its runs, and the page that shows them."""

import json
from pathlib import Path

import pytest

from benchmarks.schedules import shards
from rlinf_async.lab.table import markdown

PAGE = Path(shards.__file__).with_name("measurements.md")


def cell(number):
    return shards.ShardsCell(scenario="fast", mode="full", repetition=0, warm_up=1, steps=1, shards=number)


@pytest.mark.parametrize(
    ("number", "overrides"),
    [
        ("auto", []),
        ("kept", ["++async.advanced.fit_shards=false"]),
        ("8", ["async.rollout.shards=8"]),
        ("1x16", ["async.rollout.shards=16"]),
        ("2x8", ["async.rollout.shards=8", "cluster.component_placement.env.placement='0:0-1'"]),
    ],
)
def test_a_number_of_shards_and_of_env_workers_is_that_of_the_run(number, overrides):
    assert cell(number).overrides == overrides


def test_the_page_has_every_row_of_the_stored_runs():
    stored = json.loads(shards.RESULTS_FILE.read_text())
    table = markdown(
        ["scenario", "shards", "at the end", "decisions", "CPU a decision", "runs"], shards.rows(stored)
    )
    assert table.strip().splitlines() == [
        line for line in PAGE.read_text().splitlines() if line in table.splitlines()
    ]


def test_ratios_are_to_the_run_of_the_same_turn_and_failed_runs_are_left_out():
    good = {"fresh_steps_per_s": 100.0, "cpu_ms": 2.0, "shards": 64}
    results = {
        "fast kept #1": good,
        "fast kept #2": good | {"fresh_steps_per_s": 50.0},
        "fast 8 #1": good | {"fresh_steps_per_s": 200.0, "shards": 8},
        "fast 8 #2": good | {"fresh_steps_per_s": 200.0, "cpu_ms": 1.0, "shards": 8},
        "fast 8 #3": {"error": "it ended"},
    }
    assert list(shards.rows(results))[1] == [
        "`fast`",
        "8",
        "8",
        "3.00 [2.00, 4.00]",
        "0.75 [0.50, 1.00]",
        "2",
    ]

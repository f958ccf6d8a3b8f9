"""What a bench is under veRL, and that hosts are kept apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rlinf_async.lab.bench import command
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.command import show
from rlinf_async.lab.bench.results import Results
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME, Scenario
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from tests.lab.bench.test_results import CELL, result

VERL = replace(CELL, host="verl")
UNDER_VERL = SIDES_BY_HOST["verl"]
EMULATED = [scenario for scenario in SCENARIOS_BY_NAME.values() if scenario.env]


@pytest.fixture
def verl() -> None:
    pytest.importorskip("verl", reason="veRL is not installed")


def settings(scenario: Scenario, mode: str):
    """Of a run of the bench under veRL."""
    from rlinf_async.compose import compose_config
    from rlinf_async.hosts.verl.config import read

    side = UNDER_VERL
    overrides = [
        *side.overrides(scenario, side.modes[mode], log="log"),
        *side.run(directory=Path("run"), steps=9, seed=1001),
    ]
    return read(compose_config(side.config(scenario), overrides))


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("scenario", EMULATED, ids=lambda scenario: scenario.name)
def test_a_run_under_verl_has_the_batch_that_its_scenario_says(scenario):
    run = settings(scenario, "full")
    assert run.samples_per_batch == scenario.samples
    assert run.steps_per_decision == scenario.chunk
    assert run.optimizer_steps == scenario.optimizer_steps
    assert run.micro_batches_per_step * scenario.optimizer_steps * scenario.update_epoch == (
        scenario.micro_batches
    )
    assert (run.batches, run.seed) == (9, 1001)


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize(
    ("mode", "levels", "shards", "staleness"),
    [
        ("off", (), 1, 0),
        ("verl-stages", (), 2, 0),
        ("one-step-off", ("train",), 1, 1),
        ("train", ("train",), 1, 1),
        ("rollout", ("rollout",), 64, 0),
        ("streamer", ("streamer",), 1, 0),
        ("full", ("train", "rollout", "streamer"), 64, 1),
    ],
)
def test_a_mode_under_verl_is_the_schedule_that_it_is_named_after(mode, levels, shards, staleness):
    run = settings(SCENARIOS_BY_NAME["balanced"], mode)
    assert tuple(level for level, on in run.asynchrony.levels.items() if on) == levels
    assert run.plan.shards == shards
    assert run.asynchrony.max_staleness == staleness
    assert run.asynchrony.deterministic == (mode == "one-step-off")


@pytest.mark.usefixtures("verl")
def test_peers_under_verl_reset_beside_the_update_and_levels_where_a_rollout_begins():
    from rlinf_async.compose import compose_config

    for name, mode in UNDER_VERL.modes.items():
        overrides = UNDER_VERL.overrides(SCENARIOS_BY_NAME["balanced"], mode, log="log")
        env = compose_config(UNDER_VERL.config(SCENARIOS_BY_NAME["balanced"]), overrides).env
        assert env.train.resets_ahead == (mode.kind != "plugin"), name


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("mode", ["off", "train", "rollout", "streamer", "full", "full-exact"])
def test_a_mode_under_verl_is_measured_by_the_balance_that_its_run_has(mode):
    for scenario in (SCENARIOS_BY_NAME["balanced"], SCENARIOS_BY_NAME["resets"]):
        takes = settings(scenario, mode).asynchrony.takes_tasks
        assert UNDER_VERL.modes[mode].balance_in(scenario) == ("tasks" if takes else "exact")


@pytest.mark.usefixtures("verl")
def test_idle_inference_ranks_share_the_anchor_under_verl():
    assert settings(SCENARIOS_BY_NAME["balanced"], "full").scored_by_inference


@pytest.mark.usefixtures("verl")
def test_the_stages_of_a_run_under_verl_take_turns_and_each_is_answered_by_itself():
    plan = settings(SCENARIOS_BY_NAME["balanced"], "verl-stages").plan
    assert [plan.queue(shard) for shard in range(plan.shards)] == [(0, 0), (0, 1)]


@pytest.mark.usefixtures("verl")
def test_everything_emulated_is_compared_under_verl_by_default():
    cells = command.plan(scenarios=None, modes=None, repetitions=1, host="verl")
    assert {cell.scenario for cell in cells} == {scenario.name for scenario in EMULATED}
    assert {cell.mode for cell in cells} == {*UNDER_VERL.standard, *command.DEAD_WORK_NAMES}
    assert {cell.host for cell in cells} == {"verl"}


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scenarios": ["metaworld"]}, "'metaworld' cannot run here: its simulators are real, and .* RLinf"),
        ({"modes": ["stock-async"]}, "mode 'stock-async' is not one of off, verl-stages"),
    ],
)
def test_what_only_rlinf_has_is_refused_under_verl(wrong, message):
    with pytest.raises(ValueError, match=message):
        command.plan(**{"scenarios": None, "modes": None, **wrong}, host="verl")


def test_a_host_without_a_bench_is_refused():
    with pytest.raises(ValueError, match="host 'local' is not one of rlinf, verl"):
        command.plan(scenarios=None, modes=None, host="local")


def test_no_ratio_is_taken_across_hosts():
    made = Results()
    for mode, rate in (("stock-sync-1", 100.0), ("full", 300.0)):
        made.add(replace(CELL, mode=mode), result(rate))
    for mode, rate in (("off", 10.0), ("one-step-off", 15.0), ("full", 20.0)):
        made.add(replace(VERL, mode=mode), result(rate))
    ratios = {
        (row["host"], row["mode"]): (row["ratio_stock_sync"], row["ratio_best_stock"]) for row in made.rows()
    }
    assert ratios["rlinf", "full"] == (3.0, 3.0)
    assert ratios["verl", "full"] == (2.0, pytest.approx(20 / 15))
    assert ratios["verl", "one-step-off"] == (1.5, 1.0)


def test_a_table_says_under_which_host_it_was_measured_and_what_the_others_are():
    made = Results()
    made.add(replace(VERL, mode="one-step-off"), result(1100.0))
    console = Console(record=True, width=80)
    show(made, console)
    text = console.export_text()
    assert "libero, under verl: " in text
    assert "peer" in text
    assert "stock" not in text


def test_results_of_another_host_are_not_added_to(tmp_path):
    made = Results(tmp_path / "bench.cells.jsonl")
    made.add(CELL, result(10.0))
    with pytest.raises(ValueError, match=r"another host .*\(rlinf, verl\).* write to another file"):
        command.open_results([VERL], json_path=tmp_path / "bench.json")


def test_results_that_name_no_host_are_rlinfs():
    old = {"scenario": "libero", "mode": "full", "repetition": 0, "warm_up": 3, "steps": 4}
    assert BenchCell(**old) == CELL

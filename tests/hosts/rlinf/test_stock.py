"""What is written down of RLinf's own loop, from what its runner logs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf import stock
from rlinf_async.hosts.rlinf.metrics import in_rlinf_words
from rlinf_async.hosts.rlinf.stock import HeardLogger, ObservedRunner, StockRecords
from rlinf_async.lab.report.measures import measure
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.observe.ending import RunFailed, recorded
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.reading.status import status_facts
from rlinf_async.observe.run_dir import RunDir

TIMES = {
    "time/step": 3.5,
    "time/env/env_interact_step": 1.5,
    "time/env/env/bootstrap_step": 0.5,
    "time/rollout/predict": 0.4,
    "time/actor/run_training": 0.8,
    "time/sync_weights": 0.2,
}


class Logger:
    """RLinf's, as far as its runner asks; it keeps what it was told."""

    log_path = "here"

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def log(self, data, step, backend=None, worker_group_name=None, rank=None) -> None:
        self.heard.append((data, step, worker_group_name))

    def finish(self) -> None:
        self.heard.append(("finish",))


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    """Three steps of RLinf's own loop."""
    monkeypatch.setattr(stock, "versions", lambda: {"rlinf": "0.3.0"})
    place = f"runner.logger.log_path={tmp_path}"
    return compose_config("metaworld_ppo_mlp", [place, "async.mode=off", "runner.max_epochs=3"])


@pytest.fixture
def run(tmp_path, cfg):
    """A run whose steps take four seconds each, of which RLinf says three and a half."""
    clock = iter([4.0, 8.0, 12.0])
    inner = Logger()
    logger = HeardLogger(inner, StockRecords(cfg, now=lambda: next(clock)))
    for step in range(3):
        logger.log({"env/success_once": 0.25 * step, "env/return": 1.0}, step)
        logger.log({"rollout/rewards": 0.1}, step)
        logger.log(TIMES, step)
        logger.log({"train/loss": 0.5}, step, worker_group_name="ActorGroup", rank=0)
        logger.log({"train/loss": 1.0}, step)
    logger.finish()
    return tmp_path, inner, logger


def test_rlinfs_logger_is_told_everything_as_it_was(run):
    _, inner, logger = run
    assert len(inner.heard) == 3 * 5 + 1
    assert inner.heard[2] == (TIMES, 0, None)
    assert inner.heard[3][2] == "ActorGroup"
    assert logger.log_path == "here"


def test_a_step_lasts_until_the_next_and_has_every_tag_of_rlinfs(run):
    directory, *_ = run
    lines = RunReader(directory).metrics()
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["async/step_seconds"] == 3.5  # nobody knows what was before
    assert lines[1]["async/step_seconds"] == 4.0
    assert lines[1]["async/env_steps"] == 32 * 20
    assert lines[1]["async/env_steps_per_second"] == 160.0
    assert lines[1]["async/busiest/env"] == 0.5
    assert lines[1]["async/busiest/learner"] == 0.2
    assert lines[2]["env/success_once"] == 0.5
    assert lines[2]["train/loss"] == 1.0
    assert set(TIMES) <= set(lines[2])


def test_the_directory_is_that_of_any_other_run(run):
    directory, *_ = run
    for name in ("config.yaml", "run.json", "metrics.jsonl", "summary.json", "status.json", "trace"):
        assert (directory / name).exists()
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["env_steps"] == 3 * 640
    assert summary["trajectories"] == {"produced": 96, "trained": 96, "in_flight": 0, "refused": {}}
    assert summary["staleness"]["max"] == 0
    assert status_facts(directory)["state"] == "ended"
    files = RunFiles.read(directory)
    assert not files.stock
    assert any("its workers record no waits" in sentence for sentence in files.missing)
    measures = measure(files)
    assert measures.rate == 160.0
    assert measures.publication_s == 0.2
    assert measures.success == (0.25, 0.25)
    assert measures.diagnosis is not None


def test_the_last_line_names_the_next_command(capfd, run):
    directory, _, logger = run
    assert capfd.readouterr().out.rstrip().endswith(f"look closer: rlinf-async report {directory}")
    logger.finish()
    assert "look closer" not in capfd.readouterr().out


def test_a_run_that_has_not_ended_says_how_far_it_is(tmp_path, cfg):
    records = StockRecords(cfg)
    records.hear(TIMES, 1)
    records.hear({"env/success_once": 0.5}, 2)
    facts = status_facts(tmp_path)
    assert (facts["step"], facts["total"], facts["state"]) == (2, 3, "moving")
    assert not (tmp_path / "summary.json").exists()


def test_runs_with_levels_have_rlinfs_tags_of_time():
    own = {
        "async/step_seconds": 2.0,
        "async/busiest/env": 0.75,
        "async/busiest/inference": 0.1,
        "async/busiest/learner": 0.5,
        "async/publication_seconds": 0.25,
    }
    assert in_rlinf_words(own) == {
        "time/step": 2.0,
        "time/sync_weights": 0.25,
        "time/env/env_interact_step": 1.5,
        "time/rollout/predict": 0.2,
        "time/actor/run_training": 1.0,
    }
    assert in_rlinf_words({"eval/success_once": 1.0}) == {}


def test_a_run_of_rlinfs_own_loop_that_fails_leaves_the_sum_of_its_steps(tmp_path, cfg):
    observed = ObservedRunner(lambda cfg: SimpleNamespace(metric_logger=Logger()))
    assert observed.state().whole.steps == 0
    runner = observed(cfg)
    for step in range(2):
        runner.metric_logger.log({**TIMES, "env/return": 1.0}, step)
    ending = recorded(lambda: tmp_path, state=observed.state)
    with pytest.raises(RunFailed, match="the simulator has exploded"), ending:
        raise FloatingPointError("the simulator has exploded")
    records = RunDir(tmp_path)
    summary = RunReader(records.path).summary()
    assert (summary["ended"], summary["steps"]) == ("failed", 1)  # the other may not have been logged whole
    assert summary["trajectories"]["trained"] == summary["trajectories"]["produced"] > 0

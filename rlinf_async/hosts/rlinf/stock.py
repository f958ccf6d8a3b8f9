"""Records the steps of RLinf's own runner, in the same form as those of other runs.

The runner and its workers are unchanged: this module reads the calls of the runner's logger, in the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.core.buffer import Ledger
from rlinf_async.hosts.rlinf.borrowed import MetricLogger
from rlinf_async.hosts.rlinf.checkpoints import resume_step
from rlinf_async.hosts.rlinf.metrics import STEP_METRIC, SYNC_METRIC, WORK_METRICS, metrics_outlet
from rlinf_async.hosts.rlinf.settings import last_step
from rlinf_async.hosts.rlinf.tree import versions
from rlinf_async.hosts.rlinf.workload import env_steps_of
from rlinf_async.observe.display import RunDisplay, report_command
from rlinf_async.observe.events import (
    BUSY_METRIC,
    ENV_STEPS_METRIC,
    PUBLICATION_METRIC,
    SECONDS_METRIC,
    StepReport,
)
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.load import LoadMeter
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_log import RunLog
from rlinf_async.observe.spans import Process, SpanLog
from rlinf_async.observe.state import RunState


class ObservedRunner:
    """Builds RLinf's runner with a `HeardLogger`; called instead of the runner's class."""

    def __init__(self, runner_class: Callable[..., Any]) -> None:
        self._runner_class = runner_class
        self._records: StockRecords | None = None

    def __call__(self, cfg: DictConfig, **groups: Any) -> Any:
        runner = self._runner_class(cfg=cfg, **groups)
        self._records = StockRecords(cfg)
        remake = partial(MetricLogger, cfg)
        runner.metric_logger = HeardLogger(runner.metric_logger, self._records, remake=remake)
        return runner

    def state(self) -> RunState:
        """Return the state of the run after the steps so far."""
        return self._records.state() if self._records is not None else RunState()


class HeardLogger:
    """Passes calls on to RLinf's metric logger, and records them; `remake` builds another logger after a
    failure.
    """

    def __init__(
        self, logger: Any, records: StockRecords, *, remake: Callable[[], Any] | None = None
    ) -> None:
        # The outlet takes a logger at once, and another after a failure: the first one is RLinf's own.
        makers = chain([lambda: logger], repeat(remake or (lambda: logger)))
        self._logger = logger
        self._records = records
        self._outlet = metrics_outlet(lambda: next(makers)(), RunDisplay().note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def log(self, data: Mapping[str, Any], step: int, backend: Any = None, **keywords: Any) -> None:
        self._outlet.log(step, data, backend=backend, **keywords)
        if "worker_group_name" not in keywords:  # one worker's part, which is also in the metrics of the step
            self._records.hear(data, step)

    def finish(self) -> None:
        self._outlet.close()
        self._records.finish()


class StockRecords:
    """Writes the run directory of a run of RLinf's own loop: config, facts, metrics, status, summary and
    steps.

    RLinf logs a step in parts, one of them with its times. A step lasts from the times of the step before to
    its own, so that work between two steps counts, as in runs with levels on.
    """

    def __init__(self, cfg: DictConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        """Begin the directory, after files of an earlier run were moved aside."""
        self._now = now
        self._env_steps = env_steps_of(cfg)
        self._trajectories = int(cfg.env.train.total_num_envs) * int(cfg.env.train.get("rollout_epoch", 1))
        self._stages = int(cfg.rollout.get("pipeline_stage_num", 1))
        self._total = last_step(cfg.runner)[1]
        self._run_dir = RunDir(Path(cfg.runner.logger.log_path))
        make_directory(self._run_dir.path)
        self._run_dir.write_config(OmegaConf.to_yaml(cfg, resolve=True))
        releases = versions()
        self._run_dir.begin(
            {"stock": True, "levels": dict.fromkeys(("train", "rollout", "streamer"), False)}
            | {"max_staleness": 0, "steps": self._total},
            title=f"RLinf {releases['rlinf']}: its own runner and workers; every level is off",
            versions=releases,
            fresh=not resume_step(cfg.runner.get("resume_dir"), digests=False),
        )
        self._spans = SpanLog(self._run_dir.trace, process=Process.DRIVER)
        self._log, self._load = RunLog(self._run_dir), LoadMeter()
        self._parts: dict[str, float] = {}
        self._step: int | None = None
        self._step_end: float | None = None
        self._is_finished = False

    def hear(self, data: Mapping[str, Any], step: int) -> None:
        """Take a part of the metrics of `step`, which RLinf counts from 0."""
        if self._step is not None and step != self._step:
            self._write()
        self._step = step
        self._parts |= {name: float(value) for name, value in data.items()}
        if STEP_METRIC in data:
            now = self._now()
            began = now - float(data[STEP_METRIC]) if self._step_end is None else self._step_end
            self._parts[SECONDS_METRIC] = now - began
            self._spans.add("learn", began, step=step + 1)
            self._step_end = now

    def finish(self) -> None:
        """Write the summary, once: RLinf closes its logger more than once."""
        self._write()
        if not self._is_finished and self._step_end is not None:
            self._log.finish(self.state().ledger)
            RunDisplay().note(f"look closer: {report_command(self._run_dir.path)}")
        self._is_finished = True

    def state(self) -> RunState:
        """Return the state of the run after the steps so far. RLinf's own loop trains every trajectory that
        it collects.
        """
        state = self._log.state
        trajectories = self._trajectories * state.whole.steps
        state.ledger = Ledger(produced=trajectories, trained=trajectories)
        return state

    def _write(self) -> None:
        parts, step, self._parts, self._step = self._parts, self._step, {}, None
        if step is None or SECONDS_METRIC not in parts:
            return
        report, line = self._report(parts, step + 1)
        self._log.step(report, parts, {PUBLICATION_METRIC: line[PUBLICATION_METRIC]})
        self._run_dir.write_step(step + 1, self._total)

    def _report(self, parts: Mapping[str, float], step: int) -> tuple[StepReport, Mapping[str, float]]:
        """Return the report of a step, and its measures by the names that they have in `metrics.jsonl`."""
        # RLinf's env worker steps its pipeline stages (env shards here) one after the other.
        line = {**parts, "step": step, ENV_STEPS_METRIC: self._env_steps, "async/staleness/mean": 0.0}
        line[PUBLICATION_METRIC] = parts.get(SYNC_METRIC, 0.0)
        for name, tags in WORK_METRICS.items():
            took = sum(parts.get(tag, 0.0) for tag in tags) / (self._stages if name == "env" else 1)
            line[BUSY_METRIC.format(name)] = min(1.0, took / parts[SECONDS_METRIC])
        report = replace(StepReport.from_metrics(line), total=self._total, load=self._load.pop())
        return report, line

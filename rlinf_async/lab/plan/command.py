"""The command `rlinf-async plan`: calibrate or read, replay, compare, and tell the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rlinf_async.lab.outputs import write_json
from rlinf_async.lab.plan import table
from rlinf_async.lab.plan.comparison import Comparison, compare
from rlinf_async.lab.plan.job import Job, of_config
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.plan.replay import Replay, replay
from rlinf_async.lab.plan.times_file import read_times
from rlinf_async.lab.plan.variants import changed
from rlinf_async.lab.virtual.times import Times
from rlinf_async.observe.run_dir import RunDir

HELD_OUT = (
    "Settings planned from the trace of another one, and run afterwards, were off by 5 % on average and 9 % "
    "at most where work was emulated, by 20 % where simulators and policy shared two cores (docs/plan.md)."
)
"""How good plans were; the first two of `benchmarks/schedules/held_out.json`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of a plan."""

    job: Job
    times: Times
    replayed: Replay | None
    """The run that it begins with; None where service times are stated."""
    found: Comparison

    @property
    def unknown(self) -> list[str]:
        """Sentences on what the plan does not know, and on what would tell."""
        return list(table.unknowns(self.job, self.times, calibrated=self.replayed is not None))

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        replayed = self.replayed
        return {
            "replay": replayed
            and {
                "measured_step_s": replayed.measured_step_s,
                "planned_step_s": replayed.planned_step_s,
                "error": replayed.error,
                "close": replayed.close,
            },
            "now": self.found.now.as_dict(),
            "fastest": self.found.fastest.as_dict(),
            "others": [one.as_dict() for one in self.found.others],
            "unknown": self.unknown,
        }


def plan_run(path: Path, *, tries: Sequence[str] = ()) -> Plan:
    """From a run directory.

    Raises:
        ValueError: there is no run to calibrate from, or one of `tries` cannot be planned.
    """
    replayed = replay(path)
    return _plan(replayed.job, replayed.times, replayed, tries)


def plan_config(
    config: Mapping[str, Any],
    explained: Mapping[str, Any],
    times: Path,
    *,
    tries: Sequence[str] = (),
) -> Plan:
    """From a config as plain data, what its host explains of it, and a file of service times.

    Raises:
        ValueError: the file or the config cannot be read, or one of `tries` cannot be planned.
    """
    return _plan(of_config(config, explained), read_times(times), None, tries)


def _plan(job: Job, times: Times, replayed: Replay | None, tries: Sequence[str]) -> Plan:
    found = compare(job, times, tries=[one.split(",") for one in tries])
    return Plan(job=job, times=times, replayed=replayed, found=found)


def show(plan: Plan, console: Console) -> None:
    """All of it for a reader."""
    if plan.replayed is not None:
        replayed = plan.replayed
        console.print(
            f"The run took {replayed.measured_step_s:.2f} s a step; the plan of it "
            f"{replayed.planned_step_s:.2f} s ({replayed.error:+.1%}). {HELD_OUT}",
            soft_wrap=True,
        )
        if replayed.warning is not None:
            console.print("[bold yellow]warning:[/] ", end="")
            console.print(replayed.warning, markup=False, soft_wrap=True)
    table.show(plan.found, console)
    console.print("\nNot known:")
    for sentence in plan.unknown:
        console.print(f"  {sentence}", markup=False, soft_wrap=True)


def write(plan: Plan, path: Path) -> None:
    """The plan as JSON."""
    write_json(path, plan.as_dict())


def write_run(plan: Plan, path: Path, *, say: Callable[[str], None]) -> None:
    """Write a run directory of the fastest settings, which report, trace and status open.

    That of an earlier plan is moved aside, as that of an earlier run is.
    """
    RunDir(path).set_aside(say=say)
    settings = changed(plan.job, plan.found.fastest.overrides).settings
    foresee("fastest", settings, plan.times, draws=1, run_dir=path)

"""The command `rlinf-async plan`: calibrate, replay, compare, and tell the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rlinf_async.lab.outputs import write_json
from rlinf_async.lab.plan import table
from rlinf_async.lab.plan.comparison import Comparison, compare
from rlinf_async.lab.plan.job import Job
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.plan.replay import Replay, replay
from rlinf_async.lab.plan.variants import changed
from rlinf_async.lab.virtual.times import Times
from rlinf_async.observe.files import make_directory
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
    replayed: Replay
    """The run that it begins with."""
    found: Comparison

    @property
    def unknown(self) -> list[str]:
        """Sentences on what the plan does not know, and on what would tell."""
        return list(table.unknowns(self.job, self.times))

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        replayed = self.replayed
        return {
            "replay": {
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
    found = compare(replayed.job, replayed.times, tries=[one.split(",") for one in tries])
    return Plan(job=replayed.job, times=replayed.times, replayed=replayed, found=found)


def show(plan: Plan, console: Console) -> None:
    """All of it for a reader."""
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


def write(plan: Plan, folder: Path, *, say: Callable[[str], None]) -> None:
    """Write the plan as JSON, and a run directory of the fastest settings, which report, trace and status
    open.

    That of an earlier plan is moved aside, as that of an earlier run is.
    """
    make_directory(folder)
    write_json(folder / "plan.json", plan.as_dict())
    run = folder / "run"
    RunDir(run).set_aside(say=say)
    settings = changed(plan.job, plan.found.fastest.overrides).settings
    foresee("fastest", settings, plan.times, draws=1, run_dir=run)

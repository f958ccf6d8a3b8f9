"""Do memory, disk and open files of a run stay flat over many steps?

    python -m benchmarks.chaos.soak --steps 10000
    python -m benchmarks.chaos.soak --host rlinf --steps 4000 --since 0.5

A run whose steps are as short as they can be, with all levels on, is started as users start one and is
looked at once a second from outside: the resident memory of each of its processes, its open files, and what
its run directory holds.

Stated before the first run: it has passed if it has ended with status 0, and between the second and the last
tenth of its steps
  - no process that is there in both has grown by more than 5 %, and there are no more processes;
  - all of them together have no more files open;
  - the run directory has grown by nothing but the metrics, a line of at most 4 KB for each step, and the
    trace, which two files of 64 MB bound for each process.

Stated after runs of 1,500 and 2,000 steps on RLinf, and before all later ones: Ray's `gcs_server` fills up
to what it may remember, connections between Ray's processes come and go, and RLinf's TensorBoard logger
writes the metrics a second time. So `--since 0.5` compares the tenth that begins in the middle of a run with
the last; the typical number of open files (their median, where it was the largest) may be 1 % higher; and
TensorBoard's files may grow by as much as the metrics.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.chaos.runs import under_way
from benchmarks.chaos.watch import Sample, Watch
from benchmarks.kept import Kept
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.table import markdown
from rlinf_async.observe.spans import MAX_FILE_BYTES

RESULTS = Path(__file__).with_name("soak.json")
FIGURE = Path(__file__).with_name("soak.png")
RUNS = Path("runs/soak")
LOOK_S = 1.0
POINTS = 200
"""Samples that are kept of a run, about."""

GROWTH = 0.05
FILES = 1.01
METRICS_BYTES = 4096
OTHER_BYTES = 1 << 20
"""By how much status, faults and the like may differ between two looks."""

SETTINGS = {
    "local": [
        "-n",
        "local/point_reach",
        "settings.total_envs=8",
        "settings.horizon=2",
        "settings.global_batch_size=16",
        "settings.micro_batch_size=8",
    ],
    "rlinf": [
        "-n",
        "bench/emulated",
        "async.mode=full",
        "runner.val_check_interval=-1",
        "runner.save_interval=-1",
        "env.train.total_num_envs=8",
        "env.train.max_episode_steps=20",
        "env.train.service.decision_s=0",
        "actor.model.service.act_fixed_s=0",
        "actor.model.service.act_sample_s=0",
        "actor.model.service.train_sample_s=0",
        "actor.model.service.weights_mb=1",
        "actor.micro_batch_size=8",
        "actor.global_batch_size=16",
        "algorithm.update_epoch=1",
    ],
}
"""Runs in which little is computed."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a run, from its samples."""

    status: int
    steps: int
    seconds: float
    processes: int
    growth: float
    """Of the process that has grown most, as a share; 0 if none has."""
    grown: str
    files: tuple[int, int]
    """That were open typically, in the early tenth and in the last, in all processes together."""
    files_grown: str
    """The process that has opened most since, and how many."""
    metrics_bytes: float
    """For a step."""
    trace_mb: float
    other_bytes: int
    """By which everything else in the run directory has grown."""
    tensorboard_bytes: float
    """For a step."""
    since: float
    """Where the early tenth begins, as a share of the steps."""
    passed: bool


def run(host: str, steps: int, directory: Path) -> tuple[int, list[Sample]]:
    """Train so many steps; the exit status, and what was seen meanwhile."""
    directory.mkdir(parents=True)
    where = {
        "local": [f"run_dir={directory}", f"settings.batches={steps}"],
        "rlinf": SIDES_BY_HOST["rlinf"].run(directory=directory, steps=steps),
    }
    command = [sys.executable, "-m", "rlinf_async.cli", "train", *SETTINGS[host], *where[host]]
    samples = []
    with under_way(command, directory.with_suffix(".log")) as process:
        watch = Watch(process.pid, directory)
        while process.poll() is None:
            samples.append(watch.look())
            time.sleep(LOOK_S)
    named = [
        replace(one, memory=_named(one.memory, watch.titles), files=_named(one.files, watch.titles))
        for one in samples
    ]
    return process.returncode, named


def verdict(status: int, samples: Sequence[Sample], steps: int, since: float = 0.1) -> Verdict:
    """Compare the tenth of the steps that begins at `since`, a share of them, with the last."""
    early = [one for one in samples if since * steps <= one.step < (since + 0.1) * steps]
    late = [one for one in samples if 0.9 * steps <= one.step < steps]
    if not early or not late:
        raise ValueError(f"{len(samples)} looks at {steps} steps are too few to compare them")
    common = set.intersection(*(set(one.memory) for one in [*early, *late]))
    shares = {name: _mean(late, name) / _mean(early, name) - 1 for name in common}
    grown, growth = max(shares.items(), key=lambda item: item[1])
    files = (_typical(early), _typical(late))
    opened = {name: _typical(late, name) - _typical(early, name) for name in common}
    opener = max(opened, key=lambda name: opened[name])
    processes = (max(len(one.memory) for one in early), max(len(one.memory) for one in late))
    first, last = early[0], late[-1]
    metrics = (last.metrics - first.metrics) / (last.step - first.step)
    tensorboard = (last.tensorboard - first.tensorboard) / (last.step - first.step)
    other = last.other - first.other
    flat = growth <= GROWTH and files[1] <= files[0] * FILES and processes[1] <= processes[0]
    bounded = max(metrics, tensorboard) <= METRICS_BYTES and other <= OTHER_BYTES
    bounded = bounded and last.trace <= 2 * MAX_FILE_BYTES * processes[1]
    return Verdict(
        status=status,
        steps=last.step,
        seconds=last.seconds,
        processes=processes[1],
        growth=round(max(0.0, growth), 4),
        grown=grown.rpartition(" ")[0],
        files=files,
        files_grown=f"{opener.rpartition(' ')[0]} {opened[opener]:+d}",
        metrics_bytes=round(metrics, 1),
        trace_mb=round(last.trace / 1e6, 1),
        other_bytes=other,
        tensorboard_bytes=round(tensorboard, 1),
        since=since,
        passed=status == 0 and flat and bounded,
    )


def _named(by_pid: dict[str, Any], titles: dict[str, str]) -> dict[str, Any]:
    return {f"{titles[pid]} {pid}": held for pid, held in by_pid.items()}


def _typical(samples: Sequence[Sample], name: str | None = None) -> int:
    """Open files of one process, or of all together."""
    counts = [sum(one.files.values()) if name is None else one.files[name] for one in samples]
    return int(statistics.median(counts))


def _mean(samples: Sequence[Sample], name: str) -> float:
    return sum(one.memory[name] for one in samples) / len(samples)


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """About `POINTS` of them, and the last."""
    return [*samples[:: max(1, len(samples) // POINTS)], samples[-1]]


def table(results: dict[str, Any]) -> str:
    """A line per run."""
    rows = []
    for name, kept in results.items():
        found = kept["verdict"]
        rows.append(
            [
                name,
                str(found["status"]),
                str(found["processes"]),
                f"{found['growth']:+.1%} ({found['grown']})",
                "{} and {}".format(*found["files"])
                + (f" ({found['files_grown']})" if "files_grown" in found else ""),
                f"{found['metrics_bytes']:.0f}",
                f"{found['trace_mb']:.1f}",
                str(found["other_bytes"]),
                "yes" if found["passed"] else "no",
            ]
        )
    heads = ["run", "status", "processes", "largest growth", "open files", "metrics, bytes a step"]
    return markdown([*heads, "trace, MB", "other, bytes", "passed"], rows)


def draw(results: dict[str, Any], save: Callable[[Any], None]) -> None:
    """Resident memory over steps, a panel for each run and a line for each process."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2 * len(results)), layout="constrained")
    for place, (name, kept) in enumerate(results.items(), start=1):
        panel = figure.add_subplot(len(results), 1, place)
        samples = [one for one in kept["samples"] if 0 < one["step"] < kept["verdict"]["steps"]]
        for process in sorted({name for one in samples for name in one["memory"]}):
            seen = [(one["step"], one["memory"][process]) for one in samples if process in one["memory"]]
            panel.plot(*zip(*seen, strict=True), lw=1.2, label=process.rpartition(" ")[0])
        panel.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
        panel.set(title=name, xlabel="step", ylabel="resident memory, MB")
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
    save(figure)


def _save(figure: Any) -> None:
    # Without the version of matplotlib in it, the file depends on the data alone.
    figure.savefig(FIGURE, dpi=110, metadata={"Software": None})


def main(
    steps: Annotated[int, typer.Option(help="Of the run.")] = 10_000,
    host: Annotated[str, typer.Option(help="local or rlinf.")] = "local",
    since: Annotated[
        float, typer.Option(help="Where the tenth begins that the last is compared with.")
    ] = 0.1,
    report: Annotated[bool, typer.Option("--report", help="Run nothing.")] = False,
) -> None:
    """Run, keep what was seen, and print the table of all runs."""
    kept = Kept(RESULTS)
    if not report:
        directory = RUNS / f"{host}-{int(time.time())}"
        status, samples = run(host, steps, directory)
        found = verdict(status, samples, steps, since)
        few = [asdict(one) for one in thinned(samples)]
        name = f"{host}, {steps} steps" + (f", since {since:.0%}" if since > 0.1 else "")
        kept.add(name, {"verdict": asdict(found), "samples": few})
    draw(kept.results, _save)
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)

"""Test whether memory, disk and open files of a run stay flat over many steps.

    python -m benchmarks.chaos.soak --steps 10000
    python -m benchmarks.chaos.soak --host rlinf --steps 4000 --since 0.5

The run has the shortest possible steps and all levels on, and is started by `rlinf-async train`. Once a
second the experiment reads, from outside, the resident memory and open files of each process of the run, and
the size of the run directory.

Stated before the first run: the run has passed if it ends with status 0, and between the second and the last
tenth of its steps
  - no process that lives in both has grown by more than 5 %, and there are no more processes;
  - all processes together have no more files open;
  - only two parts of the run directory have grown: the metrics, by a line of at most 4 KB for each step, and
    the trace, which is bounded by two files of 64 MB for each process.

Stated after runs of 1,500 and 2,000 steps on RLinf, and before all later ones: Ray's `gcs_server` grows up to
the limit of its history, connections between Ray's processes come and go, and RLinf's TensorBoard logger
writes the metrics a second time. So `--since 0.5` compares the last tenth with the tenth that begins in the
middle of a run; the median number of open files (it was the largest number before) may be 1 % higher; and
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
from benchmarks.result_store import ResultStore
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.table import markdown
from rlinf_async.observe.spans import MAX_FILE_BYTES

RESULTS_FILE = Path(__file__).with_name("soak.json")
FIGURE_FILE = Path(__file__).with_name("soak.png")
RUNS_FOLDER = Path("runs/soak")
LOOK_INTERVAL_S = 1.0
KEPT_SAMPLES = 200
"""Approximate number of samples that the results keep of a run."""

MOST_GROWTH = 0.05
MOST_FILES_RATIO = 1.01
METRICS_BYTES_PER_STEP = 4096
MOST_OTHER_BYTES = 1 << 20
"""Allowed difference of status, faults and the like between two samples, in bytes."""

SETTINGS_BY_HOST = {
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
"""Config and overrides of runs that compute little."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a run, from its samples."""

    status: int
    steps: int
    seconds: float
    processes: int
    growth: float
    """Growth of the process that has grown most, as a share of its early memory; 0 if none has grown."""
    grown: str
    files: tuple[int, int]
    """Median number of open files of all processes, in the early tenth and in the last."""
    files_grown: str
    """The process with the largest growth of open files, and that growth."""
    metrics_bytes: float
    """Growth of the metrics for each step."""
    trace_mb: float
    other_bytes: int
    """Growth of everything else in the run directory."""
    tensorboard_bytes: float
    """Growth of TensorBoard's files for each step."""
    since: float
    """The begin of the early tenth, as a share of the steps."""
    passed: bool


def run(host: str, steps: int, directory: Path) -> tuple[int, list[Sample]]:
    """Train `steps` steps; return the exit status and the samples of the run."""
    directory.mkdir(parents=True)
    where = {
        "local": [f"run_dir={directory}", f"settings.batches={steps}"],
        "rlinf": SIDES_BY_HOST["rlinf"].run(directory=directory, steps=steps),
    }
    command = [sys.executable, "-m", "rlinf_async.cli", "train", *SETTINGS_BY_HOST[host], *where[host]]
    samples = []
    with under_way(command, directory.with_suffix(".log")) as process:
        watch = Watch(process.pid, directory)
        while process.poll() is None:
            samples.append(watch.look())
            time.sleep(LOOK_INTERVAL_S)
    named = [
        replace(one, memory=_named(one.memory, watch.titles), files=_named(one.files, watch.titles))
        for one in samples
    ]
    return process.returncode, named


def verdict(status: int, samples: Sequence[Sample], steps: int, since: float = 0.1) -> Verdict:
    """Compare the last tenth of the steps with the tenth that begins at the share `since`.

    Raises:
        ValueError: one of the two has no samples.
    """
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
    flat = growth <= MOST_GROWTH and files[1] <= files[0] * MOST_FILES_RATIO and processes[1] <= processes[0]
    bounded = max(metrics, tensorboard) <= METRICS_BYTES_PER_STEP and other <= MOST_OTHER_BYTES
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
    """Return the median number of open files of the process `name`, or of all processes together."""
    counts = [sum(one.files.values()) if name is None else one.files[name] for one in samples]
    return int(statistics.median(counts))


def _mean(samples: Sequence[Sample], name: str) -> float:
    return sum(one.memory[name] for one in samples) / len(samples)


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Return about `KEPT_SAMPLES` of the samples, and the last one."""
    return [*samples[:: max(1, len(samples) // KEPT_SAMPLES)], samples[-1]]


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per run."""
    rows = []
    for name, result in results.items():
        found = result["verdict"]
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
    """Draw resident memory over steps, with a panel for each run and a line for each process."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2 * len(results)), layout="constrained")
    for place, (name, result) in enumerate(results.items(), start=1):
        panel = figure.add_subplot(len(results), 1, place)
        samples = [one for one in result["samples"] if 0 < one["step"] < result["verdict"]["steps"]]
        for process in sorted({name for one in samples for name in one["memory"]}):
            seen = [(one["step"], one["memory"][process]) for one in samples if process in one["memory"]]
            panel.plot(*zip(*seen, strict=True), lw=1.2, label=process.rpartition(" ")[0])
        panel.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
        panel.set(title=name, xlabel="step", ylabel="resident memory, MB")
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
    save(figure)


def _save(figure: Any) -> None:
    # The file depends on the data alone, not on the version of matplotlib.
    figure.savefig(FIGURE_FILE, dpi=110, metadata={"Software": None})


def main(
    steps: Annotated[int, typer.Option(help="Steps of the run.")] = 10_000,
    host: Annotated[str, typer.Option(help="local or rlinf.")] = "local",
    since: Annotated[
        float, typer.Option(help="Begin of the tenth to compare the last with, as a share of the steps.")
    ] = 0.1,
    report: Annotated[bool, typer.Option("--report", help="Only print the table and draw.")] = False,
) -> None:
    """Run, store the verdict and samples, draw, and print the table of all runs."""
    store = ResultStore(RESULTS_FILE)
    if not report:
        directory = RUNS_FOLDER / f"{host}-{int(time.time())}"
        status, samples = run(host, steps, directory)
        found = verdict(status, samples, steps, since)
        few = [asdict(one) for one in thinned(samples)]
        name = f"{host}, {steps} steps" + (f", since {since:.0%}" if since > 0.1 else "")
        store.add(name, {"verdict": asdict(found), "samples": few})
    draw(store.results, _save)
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)

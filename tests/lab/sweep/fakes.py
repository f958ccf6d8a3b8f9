"""Sweeps whose runs are a script of a few lines instead of training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlinf_async.hosts.host import StockRuns, Workload
from rlinf_async.lab.sweep import cell as cell_module
from rlinf_async.lab.sweep.cell import SweepCell
from rlinf_async.lab.sweep.plan import Sweep, SweepDirectory, seed_overrides
from rlinf_async.lab.sweep.settings import parse_axis, parse_settings, varied
from rlinf_async.lab.sweep.steps import Averages

WORKLOAD = Workload(
    run_dir="runner.logger.log_path",
    steps=("runner.max_epochs", 3),
    seeds={"actor.seed": 7},
    off="off: somebody else's runner.",
    stock=StockRuns(env_steps=320, stages=1),
)

TRAIN = """
import json, sys
from pathlib import Path

(place,) = [one for one in sys.argv if one.startswith("runner.logger.log_path=")]
run, here = Path(place.split("=", 1)[1].strip("'")), Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(run.name + "\\n")
print("training", *sys.argv[1:])
if (here / f"{run.name}.fails").exists():
    print("Traceback (most recent call last):")
    print("\\x1b[31mValueError: the simulator is out of fuel\\x1b[0m")
    print("ray: goodbye")
    sys.exit(3)
rate = json.loads((here / "rates.json").read_text()).get(run.name, 100.0)
if rate:
    line = {"async/env_steps": 320, "async/step_seconds": 320 / rate}
    line |= {"async/busiest/env": 0.5, "async/busiest/learner": 0.25, "env/success_once": 0.75}
    lines = [json.dumps({"step": step, **line}) + "\\n" for step in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("".join(lines))
"""
"""Writes metrics of the throughput that it is told, none for zero; fails where it is told to."""


class FakeTraining:
    """What `rlinf-async train` is replaced by; the script's directory says how runs go."""

    def __init__(self, directory: Path, monkeypatch) -> None:
        self._directory = directory
        directory.mkdir()
        (directory / "train.py").write_text(TRAIN)
        self.rates({})
        monkeypatch.setattr(cell_module, "TRAIN_COMMAND", (sys.executable, str(directory / "train.py")))

    def rates(self, by_run: dict[str, float]) -> None:
        (self._directory / "rates.json").write_text(json.dumps(by_run))

    def fail(self, run: str, *, fails: bool = True) -> None:
        mark = self._directory / f"{run}.fails"
        mark.touch() if fails else mark.unlink()

    def calls(self) -> list[str]:
        """Names of the runs since the last call."""
        path = self._directory / "calls"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names


def run(rate: float, **changes: float | None) -> Averages:
    """A run of that throughput."""
    usual = {"step_s": 2.0, "rollout_s": 1.5, "learner_s": 0.5, "success": 0.5}
    return Averages(env_steps_per_s=rate, **{**usual, **changes})


def sweep(
    directory: Path,
    modes: str = "train,full",
    *,
    seeds: int = 1,
    overrides: tuple[str, ...] = (),
    config: str = "a",
    vary: tuple[str, ...] = (),
) -> Sweep:
    """A sweep as `plan` makes it, of a config that nobody composes."""
    settings = varied(parse_settings(modes), [parse_axis(text) for text in vary])
    cells = tuple(
        SweepCell(
            setting=setting,
            seed=seed,
            source=("--config-name", "some"),
            overrides=(*overrides, *setting.overrides, *seed_overrides(WORKLOAD, seed)),
            config=config,
            workload=WORKLOAD,
            sweep=directory,
        )
        for seed in range(seeds)
        for setting in settings
    )
    identity = {"config_name": "some", "config_dir": None, "overrides": list(overrides)}
    return Sweep(
        directory=SweepDirectory(directory, identity),
        settings=settings,
        seeds=seeds,
        cells=cells,
        off=WORKLOAD.off,
        steps=WORKLOAD.steps[1],
    )

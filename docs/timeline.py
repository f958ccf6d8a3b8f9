"""Draws what overlaps in a step of `off`, `lean` and `full`, from the records of three runs.

    for mode in off lean full; do
        rlinf-async train metaworld_ppo_mlp runner.max_epochs=6 async.mode=$mode \\
            runner.logger.log_path=runs/$mode
    done
    python docs/timeline.py runs/off runs/lean runs/full

Without arguments the pictures are drawn anew from `images/timeline.json`. RLinf's own workers record no
spans: of `off` the phases of a step are drawn as its runner has logged their seconds, in the order in which
it makes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.timelines import StepInterval, steps_of

IMAGES = Path(__file__).parent / "images"
DATA = IMAGES / "timeline.json"
LANES = ("simulators", "inference", "learner")
LANE_AND_ROLE_BY_KIND = {
    "step": ("simulators", "work"),
    "reset": ("simulators", "work"),
    "forward": ("inference", "work"),
    "score": ("inference", "work"),
    "accept": ("learner", "work"),
    "finish": ("learner", "work"),
    "put": ("simulators", "moving"),
    "load": ("inference", "moving"),
    "copy": ("learner", "moving"),
    "send": ("learner", "moving"),
}
TURNS = "by turns"
"""The role of the phase in which RLinf's simulators and inference wait for each other at every decision."""
THEMES = {
    "": {"ground": "#ffffff", "ink": "#1f2328", "work": "#d9601a", "moving": "#0072B2", "lane": "#eef0f2"},
    "-dark": {
        "ground": "#0d1117",
        "ink": "#e6edf3",
        "work": "#ff8a3d",
        "moving": "#56B4E9",
        "lane": "#21262d",
    },
}

Bar = tuple[str, float, float, str]
"""Lane, begin and end as shares of the step, and role."""


def usual(steps: Sequence[StepInterval]) -> StepInterval:
    """Return the step after the first whose length is nearest to the median."""
    middle = median(step.seconds for step in steps[1:])
    return min(steps[1:], key=lambda step: abs(step.seconds - middle))


def bars(run: RunFiles, step: StepInterval) -> list[Bar]:
    """Return the bars of a step; of RLinf's own loop, those of its phases."""
    if run.facts.get("stock") is True:
        return _phases(next(line for line in run.metrics if line["step"] == step.number))
    found = []
    for span in run.spans:
        lane, role = LANE_AND_ROLE_BY_KIND.get(span["kind"], ("", ""))
        began, ended = ((at - step.began) / step.seconds for at in (span["began"], span["ended"]))
        if lane and ended > 0 and began < 1:
            row = f"{lane} {span['shard']}" if lane == LANES[0] and "shard" in span else lane
            found.append((row, round(max(0.0, began), 4), round(min(1.0, ended), 4), role))
    return found


def _phases(line: Mapping[str, float]) -> list[Bar]:
    seconds = [line[f"time/{name}"] for name in ("sync_weights", "generate_rollouts", "actor/run_training")]
    sync, rollouts, _ = (sum(seconds[:count]) / line["async/step_seconds"] for count in (1, 2, 3))
    return [
        *((lane, 0.0, sync, "moving") for lane in LANES[1:]),
        *((lane, sync, rollouts, TURNS) for lane in LANES[:2]),
        ("learner", rollouts, 1.0, "work"),
    ]


def recorded(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the data of the picture, a record for each run."""
    found = []
    for path in paths:
        run = RunFiles.read(path)
        step = usual(steps_of(run.spans))
        line = next(line for line in run.metrics if line["step"] == step.number)
        found.append(
            {
                "mode": path.name,
                "seconds": round(step.seconds, 2),
                "left_out": round(line.get("async/skipped/samples", 0.0), 3),
                "bars": bars(run, step),
            }
        )
    return found


def draw(runs: Sequence[Mapping[str, Any]]) -> None:
    """Write timeline.png and timeline-dark.png."""
    for suffix, theme in THEMES.items():
        figure, panels = plt.subplots(
            len(runs), 1, figsize=(8.4, 1.25 * len(runs) + 0.5), layout="constrained"
        )
        figure.set_facecolor(theme["ground"])
        for panel, run in zip(panels, runs, strict=True):
            _panel(panel, run, theme)
        panels[-1].set_xlabel(
            "one step of the learner, from its begin to its end", color=theme["ink"], fontsize=9
        )
        handles = [
            Patch(color=theme["work"], label="works"),
            Patch(facecolor=theme["work"], alpha=0.45, hatch="////", label="work, one waiting for the other"),
            Patch(color=theme["moving"], label="moves data or weights"),
            Patch(color=theme["lane"], label="waits"),
        ]
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5
        )
        for text in legend.get_texts():
            text.set_color(theme["ink"])
        figure.savefig(IMAGES / f"timeline{suffix}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)


def _panel(panel: Axes, run: Mapping[str, Any], theme: Mapping[str, str]) -> None:
    panel.set_facecolor(theme["ground"])
    rows = sorted({row for row, *_ in run["bars"]}, key=lambda row: (LANES.index(row.split()[0]), row))
    for place, row in enumerate(rows):
        panel.barh(-place, 1, height=0.8, color=theme["lane"])
        for lane, began, ended, role in run["bars"]:
            if lane == row and role == TURNS:
                panel.barh(
                    -place,
                    ended - began,
                    left=began,
                    height=0.8,
                    color=theme["work"],
                    alpha=0.45,
                    hatch="////",
                )
            elif lane == row:
                panel.barh(-place, ended - began, left=began, height=0.8, color=theme[role])
    names = {f"simulators {number}": f"simulators, shard {number}" for number in range(9)}
    panel.set_yticks(
        [-place for place in range(len(rows))], [names.get(row, row) for row in rows], fontsize=8.5
    )
    panel.set(xlim=(0, 1), xticks=[])
    out = f"; {run['left_out']:.0%} of the samples are in no pass of the learner" if run["left_out"] else ""
    panel.set_title(f"{run['mode']}{out}", loc="left", color=theme["ink"], fontsize=10, weight="bold")
    panel.tick_params(colors=theme["ink"], length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        DATA.write_text(json.dumps(recorded([Path(each) for each in sys.argv[1:]])) + "\n")
    draw(json.loads(DATA.read_text()))

"""Compare drawing every frame with drawing the last frame of each decision, on a GPU.

    python -m benchmarks.gpu.frames --json frames.json

Each case is `benchmarks.dead_work.frames` in a process of its own: MuJoCo's simulators with MUJOCO_GL=egl,
ManiSkill on the CPU drawn by the GPU, and ManiSkill on the GPU. Both sides play the same actions from the
same seeds, by turns; all outputs of decisions are compared bit for bit. A decision's seconds are printed
beside its CPU seconds, which do not contain the GPU's time. A case that cannot run is printed with its error,
and the others run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.dead_work.frames import LAST_FRAMES_SIDE, STOCK_SIDE
from rlinf_async.lab.process import last_words, run_command
from rlinf_async.lab.table import markdown

DEADLINE_S = 900.0
EGL = {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
ON_GPU = {"RENDER_BACKEND": "gpu"}
QUICK = ("--size", "64", "--decisions", "1", "--turns", "1")


@dataclass(frozen=True)
class Case:
    """One comparison: the arguments of `benchmarks.dead_work.frames`, and its environment variables."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def _case(simulator: str, environment: Mapping[str, str], **sizes: int) -> Case:
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    return Case((simulator, *words), environment)


CASES_BY_NAME = {
    "libero": _case("libero", EGL, chunk=10, size=256, decisions=6, turns=3),
    "metaworld": _case("metaworld", EGL, chunk=10, size=480, decisions=10, turns=3),
    "metaworld-5": _case("metaworld", EGL, chunk=5, size=480, decisions=20, turns=3),
    "maniskill": _case("maniskill", ON_GPU, chunk=5, size=128, decisions=20, turns=3),
    "maniskill-gpu": _case(
        "maniskill", {**ON_GPU, "SIM_BACKEND": "gpu"}, chunk=5, size=128, envs=64, decisions=20, turns=3
    ),
}


def measured(case: Case, *, quick: bool, gl: str) -> dict[str, Any]:
    """Run a case; return the result of `benchmarks.dead_work.frames`, or its error."""
    drawing = {name: gl for name in case.environment.keys() & EGL.keys()}
    with tempfile.TemporaryDirectory() as folder:
        found, output = Path(folder, "found.json"), Path(folder, "output")
        command = [sys.executable, "-m", "benchmarks.dead_work.frames", *case.arguments]
        status = run_command(
            [*command, *(QUICK if quick else ()), "--out", str(found)],
            output,
            environment={**case.environment, **drawing},
            deadline_s=DEADLINE_S,
        )
        if status or not found.exists():
            return {"error": last_words(output)}
        result: dict[str, Any] = json.loads(found.read_text())
    return result


def machine() -> dict[str, Any]:
    """Return the GPU, as its driver names it, and the number of cores."""
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        gpu = "none"
    return {"gpu": gpu, "cores": os.cpu_count()}


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with a line per case."""
    lines = []
    for name, row in rows.items():
        if "error" in row:
            lines.append([f"`{name}`", "", "", "", row["error"].splitlines()[-1]])
            continue
        seconds, ratios = row["seconds_per_decision"], (row["seconds_ratio"], row["ratio"])
        spans = [
            f"{min(seconds[side]):.3g} to {max(seconds[side]):.3g}" for side in (STOCK_SIDE, LAST_FRAMES_SIDE)
        ]
        equal = "equal" if row["equal"] else f"differs at {row['difference']}"
        lines.append([f"`{name}`", *spans, "{:.2f}, CPU {:.2f}".format(*ratios), equal])
    return markdown(["case", "every frame, s", "the last, s", "ratio", "what is shown"], lines)


def main(
    cases: Annotated[str, typer.Option(help="Cases, separated by commas.")] = ",".join(CASES_BY_NAME),
    json_file: Annotated[Path | None, typer.Option("--json", help="File for machine and rows.")] = None,
    gl: Annotated[str, typer.Option(help="MuJoCo's way of drawing; osmesa needs no GPU.")] = "egl",
    quick: Annotated[bool, typer.Option("--quick", help="Small pictures; its numbers mean nothing.")] = False,
) -> None:
    """Run the cases one after the other, and print their ratios."""
    unknown = [name for name in cases.split(",") if name not in CASES_BY_NAME]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)} is none of {', '.join(CASES_BY_NAME)}")
    rows: dict[str, dict[str, Any]] = {}
    for name in cases.split(","):
        rows[name] = measured(CASES_BY_NAME[name], quick=quick, gl=gl)
        if json_file is not None:
            json_file.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    typer.echo(table(rows))


if __name__ == "__main__":
    typer.run(main)

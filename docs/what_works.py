"""The table of models and simulators: what `explain` accepts, and what has run, each with its evidence.

What is accepted is counted in docs/rlinf-configs.md. What has run is the configs below, each of which
tests/test_docs_works.py compares with its evidence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.lab.table import markdown

ACCEPTED = Path(__file__).with_name("rlinf-configs.md")

MODELS = {
    "pi0, pi0.5": ("openpi", "openpi_rlinf"),
    "GR00T": ("gr00t", "gr00t_n1d6", "gr00t_n1d7"),
    "OpenVLA-OFT": ("openvla_oft",),
    "OpenVLA": ("openvla",),
    "Dexbotic, StarVLA, Lingbot, Evo-1": ("dexbotic_pi", "dexbotic_dm0", "starvla", "lingbotvla", "evo1"),
    "MLP, CNN": ("mlp_policy", "cnn_policy"),
}
FAMILY = {name: family for family, names in MODELS.items() for name in names}
SIMULATORS = {
    "LIBERO": ("libero",),
    "Meta-World": ("metaworld",),
    "ManiSkill": ("maniskill",),
    "RoboTwin": ("robotwin",),
    "CALVIN": ("calvin",),
    "BEHAVIOR": ("behavior",),
    "Isaac Lab": ("isaaclab",),
    "Genesis": ("genesis",),
    "RoboCasa": ("robocasa", "robocasa365"),
    "world models": ("wan_wm", "opensora_wm"),
}
OTHERS = "others"

CPU, GPU, LEARNED = "CPU", "GPU", "**learned**"
Cell = tuple[str, str]
"""A family of models and a simulator."""


@dataclass(frozen=True)
class Run:
    """A config that has run, what it has shown, and the file that says so."""

    config: str
    shown: str
    evidence: str
    named: str = ""
    """What it is called there, if not by its config."""
    cell: Cell | None = None
    """Where it belongs, of a config that RLinf does not have."""


RUNS = (
    Run("libero_object_ppo_openpi", CPU, "tests/vla/families.py"),
    Run("libero_object_ppo_openpi_pi05", CPU, "tests/vla/families.py"),
    Run("libero_object_ppo_gr00t", CPU, "tests/vla/families.py"),
    Run("libero_object_grpo_openvlaoft", CPU, "tests/vla/families.py"),
    Run("metaworld_50_ppo_openpi_pi05", GPU, "docs/models.md#on-a-gpu"),
    Run("maniskill_ppo_mlp", CPU, "tests/runs/test_maniskill.py"),
    Run("verl_vla_libero_ppo", CPU, "tests/verl_vla/test_runs.py", cell=("MLP, CNN", "LIBERO")),
    Run(
        "metaworld_ppo_mlp",
        LEARNED,
        "benchmarks/learning/results/preregistered.json",
        named="rlinf-press-ppo-1-fsdp2",
        cell=("MLP, CNN", "Meta-World"),
    ),
    Run(
        "metaworld_ppo_pi0",
        LEARNED,
        "benchmarks/learning/pi0.py",
        cell=("pi0, pi0.5", "Meta-World"),
    ),
)


def accepted(page: str) -> Counter[Cell]:
    """Count the on-policy configs of RLinf that `full` takes, by family of models and simulator."""
    return Counter(cell for _, cell, levels in _rows(page) if re.search(r"\d", levels))


def runs(page: str) -> dict[Cell, list[Run]]:
    """The runs of each cell."""
    places = {name: cell for name, cell, _ in _rows(page)}
    found: dict[Cell, list[Run]] = {}
    for run in RUNS:
        found.setdefault(run.cell or places[run.config], []).append(run)
    return found


def _rows(page: str) -> Iterator[tuple[str, Cell, str]]:
    """Name, cell and levels of every config of the page."""
    column = {name: simulator for simulator, names in SIMULATORS.items() for name in names}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) >= 8 and cells[3] in FAMILY:
            yield cells[0].strip("`"), (FAMILY[cells[3]], column.get(cells[4], OTHERS)), cells[6]


def table(page: str) -> str:
    """A row for each simulator, a column for each family of models."""
    counts, have_run = accepted(page), runs(page)
    rows = [
        [simulator, *(_words((model, simulator), counts, have_run) for model in MODELS)]
        for simulator in [*SIMULATORS, OTHERS]
    ]
    return markdown(["", *MODELS], rows)


def _words(cell: Cell, counts: Mapping[Cell, int], have_run: Mapping[Cell, list[Run]]) -> str:
    shown = dict.fromkeys(run.shown for run in have_run.get(cell, ()))
    return ", ".join([*shown, *([f"{counts[cell]} explained"] if counts[cell] else [])])


def evidence() -> str:
    """A row for each run."""
    return markdown(
        ["config", "what", "evidence"],
        [[f"`{run.config}`", run.shown, f"[{run.evidence}](../{run.evidence})"] for run in RUNS],
    )

"""Writes the table of models and simulators in README.md.

    python docs/generate_readme.py

Which of RLinf's example configs are accepted is read from docs/rlinf-configs.md. What has trained and learned
is listed here, each with the tests or the result that show it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from generated import fill

from rlinf_async.lab.table import markdown

DOCS = Path(__file__).parent
PAGE = DOCS.parent / "README.md"
ACCEPTED = DOCS / "rlinf-configs.md"

MODELS = {
    "pi0, pi0.5": ("openpi", "openpi_rlinf"),
    "GR00T": ("gr00t", "gr00t_n1d6", "gr00t_n1d7"),
    "OpenVLA-OFT": ("openvla_oft",),
    "OpenVLA": ("openvla",),
    "Dexbotic, StarVLA, Lingbot, Evo-1": ("dexbotic_pi", "dexbotic_dm0", "starvla", "lingbotvla", "evo1"),
    "MLP, CNN": ("mlp_policy", "cnn_policy"),
}
SIMULATORS = {"LIBERO": "libero", "Meta-World": "metaworld", "ManiSkill": "maniskill", "RoboTwin": "robotwin"}
OTHERS = "others"

TRAINED_ON_CPU, TRAINED_ON_GPU, LEARNED = "trained on CPU", "trained on a GPU", "**learned**"
EVIDENCE = {
    ("pi0, pi0.5", "LIBERO"): TRAINED_ON_CPU,  # tests/vla/test_runs.py
    ("pi0, pi0.5", "Meta-World"): TRAINED_ON_GPU,  # docs/compatibility.md, "On a GPU"
    ("GR00T", "LIBERO"): TRAINED_ON_CPU,  # tests/vla/test_runs.py
    ("OpenVLA-OFT", "LIBERO"): TRAINED_ON_CPU,  # tests/vla/test_runs.py
    ("MLP, CNN", "Meta-World"): LEARNED,  # benchmarks/learning/results/preregistered.json
    ("MLP, CNN", "ManiSkill"): TRAINED_ON_CPU,  # tests/runs/test_maniskill.py
}


def accepted(page: str) -> Counter[tuple[str, str]]:
    """Count the on-policy configs of RLinf that `full` takes, by family of models and simulator."""
    model_of = {name: row for row, names in MODELS.items() for name in names}
    simulator_of = {name: column for column, name in SIMULATORS.items()}
    counts: Counter[tuple[str, str]] = Counter()
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `") or len(cells) < 8 or not re.search(r"\d", cells[6]):
            continue
        counts[model_of[cells[3]], simulator_of.get(cells[4], OTHERS)] += 1
    return counts


def table(counts: Counter[tuple[str, str]]) -> str:
    """A row for each family of models, a column for each simulator."""
    columns = [*SIMULATORS, OTHERS]
    return markdown(
        ["", *columns], [[model, *(_cell(counts, model, each) for each in columns)] for model in MODELS]
    )


def _cell(counts: Counter[tuple[str, str]], model: str, simulator: str) -> str:
    shown, count = EVIDENCE.get((model, simulator)), counts[model, simulator]
    return "; ".join([*([shown] if shown else []), *([f"{count} accepted"] if count else [])])


def generate(page: str) -> str:
    """The page with its table written anew."""
    return fill(page, {"what works": table(accepted(ACCEPTED.read_text()))})


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))

"""Writes into docs/models.md what `explain` says of dead work in the setups of the RL-VLA3 paper.

    python docs/generate_papers.py CHECKOUT

The setups are those that this package ships (the Hydra group `paper`), over RLinf's example configs.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import fill

from rlinf_async.compose import compose_config
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.rlinf.explain import explain

PAGE = Path(__file__).with_name("models.md")
PART = "dead work of the papers' setups"
GPUS = 8
SETUPS = {
    "A": "libero_10_ppo_openpi",
    "B": "libero_10_grpo_openvlaoft",
    "C": "libero_10_ppo_openpi_pi05",
    "D": "libero_10_ppo_gr00t",
    "E": "maniskill_ppo_openpi",
    "F": "maniskill_ppo_openvlaoft",
}
"""RLinf's YAML of each setup."""
VIDEO = "++env.train.video_cfg.decisions_only=true"
"""The override by which a video does not look at every frame."""
HEAD = "| setup | `async.skip` | left out | kept, and why |\n|---|---|---|---|"


def found(letter: str, directory: Path, *overrides: str) -> dict[str, tuple[str, str]]:
    """Return, of each kind of dead work, what is left out of a setup and what is kept."""
    names = [f"+paper=rl_vla3_{letter.lower()}", "async.mode=full", *overrides]
    facts: dict[str, Any] = explain(
        compose_config(SETUPS[letter], names, directory), AssumedCluster(gpus=GPUS)
    )
    return {one["kind"]: (one["left_out"], "; ".join(one["kept"])) for one in facts["dead_work"]}


def lines(directory: Path) -> Iterator[str]:
    """Yield the rows of the table: setups of which the same is said share one."""
    rows: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for letter in SETUPS:
        as_it_is, decisions = found(letter, directory), found(letter, directory, VIDEO)
        for kind, (left_out, kept) in as_it_is.items():
            rows[f"`{kind}`", left_out, kept].append(letter)
            if decisions[kind] != (left_out, kept):
                rows[f"`{kind}`, with `{VIDEO}`", *decisions[kind]].append(letter)
    for (kind, left_out, kept), letters in sorted(rows.items(), key=lambda row: (row[1][0], row[0][0])):
        yield f"| {', '.join(letters)} | {kind} | {left_out or 'nothing'} | {kept or '-'} |"


def generate(page: str, directory: Path) -> str:
    """The page with the table anew, by the example configs in `directory`."""
    return fill(page, {PART: "\n".join([HEAD, *lines(directory)])})


if __name__ == "__main__":
    examples = Path(sys.argv[1]).absolute() / "examples" / "embodiment"
    os.environ["EMBODIED_PATH"] = str(examples)
    PAGE.write_text(generate(PAGE.read_text(), examples / "config"))

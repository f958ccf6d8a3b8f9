"""Every setting of the three levels under veRL, with one rank and with two of everything, on real clusters.

Not a test of CI, where a few of them run: `make runs-verl`. What has been run is in `runs/every_setting`, a
directory each, and is not run again; at the end a table of staleness and streaming is printed.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rlinf_async.compose import compose_config
from rlinf_async.config import LEVEL_NAMES
from rlinf_async.hosts.verl.host import VerlHost
from rlinf_async.lab.table import markdown
from tests.runs.conftest import Run
from tests.runs_verl.conftest import ACTOR, GROUPS, SMALL, check_books

RUNS = Path("runs/every_setting")
ONE_EPOCH = f"{ACTOR}.ppo_epochs=1"
"""With one, level 3 streams PPO, too."""
RANKS = (
    "trainer.n_gpus_per_node=2",
    "vla.inference.ranks=2",
    "env.workers=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
)
"""Two learner ranks, two inference ranks, two env workers."""
PICTURES = (
    "env.train.total_num_envs=4",
    "env.eval.total_num_envs=4",
    "env.train.max_episode_steps=10",
    "vla.model.image_size=16",
    "data.train_batch_size=4",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
)
ALGORITHMS = {
    "PPO": ("verl_metaworld_ppo_mlp", (ONE_EPOCH,)),
    "GRPO": ("verl_metaworld_grpo_mlp", (*GROUPS, ONE_EPOCH)),
}


@dataclass(frozen=True)
class Case:
    """A run: `column` and `levels` say where its result stands in the table."""

    column: str
    levels: tuple[bool, ...]
    config: str
    overrides: tuple[str, ...]
    trajectories: int = 8
    """In a batch."""

    @property
    def directory(self) -> Path:
        on = "-".join(name for name, flag in zip(LEVEL_NAMES, self.levels, strict=True) if flag) or "off"
        return (RUNS / f"{self.column}-{on}".lower().replace(" ", "-").replace(",", "")).absolute()

    @property
    def seen(self) -> Path:
        return self.directory / "seen.json"


def cases() -> Iterator[Case]:
    """All of them, those first that are the most different."""
    levels = list(itertools.product((True, False), repeat=3))
    for name, ranks in (("PPO", 1), ("GRPO", 2)):
        yield from (_of(name, ranks, on) for on in levels)
    for on in (levels[0], (True, False, False), levels[-1]):
        yield Case("PPO, pictures", on, "verl_metaworld_ppo_vla", PICTURES, trajectories=4)
    for name, ranks in (("PPO", 2), ("GRPO", 1)):
        yield from (_of(name, ranks, on) for on in levels)


def _of(algorithm: str, ranks: int, levels: tuple[bool, ...]) -> Case:
    config, overrides = ALGORITHMS[algorithm]
    several = ranks > 1
    column = f"{algorithm}, {'two of each rank' if several else 'one rank'}"
    return Case(column, levels, config, (*overrides, *(RANKS if several else ())))


def run(case: Case) -> None:
    """Run it, check its books, and write down what was seen."""
    flags = [
        f"async.{name}.enabled={str(on).lower()}" for name, on in zip(LEVEL_NAMES, case.levels, strict=True)
    ]
    overrides = [*SMALL, *case.overrides, "async.mode=off", *flags, f"vla.run_dir={case.directory}"]
    cfg, host, began = compose_config(case.config, overrides), VerlHost(), time.monotonic()
    host.prepare(cfg)
    host.train(cfg)
    done, bound = Run(0, "", case.directory), int(case.levels[0])
    check_books(done, staleness=bound, trained=3 * case.trajectories)
    case.seen.write_text(
        json.dumps(
            {
                "staleness_max": max(line["async/staleness/max"] for line in done.metrics),
                "streamed": max(line.get("train/streamed", 0.0) for line in done.metrics),
                "off_logprobs": done.metrics[0]["train/premise/logprobs"],
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )


def table(seen: Mapping[tuple[str, tuple[bool, ...]], Mapping[str, float]]) -> str:
    """The greatest staleness and the greatest share that was streamed, for each case that has run."""
    columns = list(dict.fromkeys(case.column for case in cases()))
    rows = []
    for levels in itertools.product((True, False), repeat=3):
        on = [name for name, flag in zip(LEVEL_NAMES, levels, strict=True) if flag]
        found = [seen.get((column, levels)) for column in columns]
        rows.append([", ".join(on) or "none", *(_words(one) for one in found)])
    return markdown(["levels", *columns], rows)


def _words(seen: Mapping[str, float] | None) -> str:
    if seen is None:
        return "–"
    return f"{seen['staleness_max']:.0f}, {seen['streamed']:.0%}"


def main(
    seconds: Annotated[float, typer.Option(help="Begin with no further run after this time.")] = math.inf,
) -> None:
    began = time.monotonic()
    for case in cases():
        if time.monotonic() - began > seconds:
            break
        if not case.seen.exists():
            typer.echo(f"RUN {case.directory.name}")
            run(case)
    seen = {
        (case.column, case.levels): json.loads(case.seen.read_text())
        for case in cases()
        if case.seen.exists()
    }
    typer.echo(f"{len(seen)} of {len(list(cases()))} settings have run: staleness at most, streamed at most")
    typer.echo(table(seen))


if __name__ == "__main__":
    typer.run(main)

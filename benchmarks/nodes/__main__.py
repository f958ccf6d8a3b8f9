"""Measure RLinf's host on machines made of namespaces: throughput, bytes of each machine, and two faults.

    python -m benchmarks.nodes
    python -m benchmarks.nodes --only "3 nodes, 64 px"
    python -m benchmarks.nodes --report

README.md describes the measurements. A case that is in `results.json` is measured again only with `--only`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.nodes.cluster import Run, start_cluster
from benchmarks.nodes.machines import Machine, machines, unavailable
from benchmarks.nodes.tables import tables
from benchmarks.result_store import ResultStore

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

RESULTS_FILE = Path(__file__).with_name("results.json")
RUNS_FOLDER = Path("runs/nodes")
LINK_RATE = "1gbit"
WARM_UP_STEPS, MEASURED_STEPS, STEPS_AFTER_FAULT = 4, 8, 5
NODE_LOST_TEXT = "node is lost"
"""A part of the line that a run logs when Ray has given up a node."""
ENVS_PER_NODE, DECISIONS_PER_ENV = 16, 8
"""Environments of each node with an env worker, and decisions of each environment in a step."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run: the nodes of each kind of process, and a fault of the second node after the warm-up."""

    nodes: int
    env: str
    inference: str
    learner: str
    pixels: int = 64
    fault: Callable[[Machine], None] | None = None

    @property
    def samples(self) -> int:
        """Decisions of a global step."""
        first, _, last = self.env.partition("-")
        return ENVS_PER_NODE * DECISIONS_PER_ENV * (int(last or first) - int(first) + 1)

    def settings(self) -> list[str]:
        """Return the overrides of the bench's emulated config: 16 environments per node, and the simulators
        are the bottleneck.
        """
        placed = {"env": self.env, "rollout": self.inference, "actor": self.learner}
        place = "cluster.component_placement"
        return [
            *("-n", "bench/emulated", "async.mode=full", "runner.max_epochs=10000"),
            f"cluster.num_nodes={self.nodes}",
            *(f"{place}.{name}.placement={where}" for name, where in placed.items()),
            *(
                f"env.train.total_num_envs={self.samples // DECISIONS_PER_ENV}",
                f"env.train.max_episode_steps={80}",
            ),
            f"+env.train.image_size={self.pixels}",
            *("env.train.service.decision_s=0.3", "env.train.service.cv=0.3", "algorithm.update_epoch=1"),
            *("actor.micro_batch_size=32", f"actor.global_batch_size={self.samples}"),
            *("actor.model.service.act_fixed_s=0.01", "actor.model.service.act_sample_s=0.0003"),
            "actor.model.service.train_sample_s=0.001",
        ]


def kill_ray(machine: Machine) -> None:
    """Kill the raylet of a node; its workers end with it."""
    machine.call("pkill", "-KILL", "-x", "raylet")


def _spread(nodes: int, pixels: int) -> Case:
    everywhere = f"0-{nodes - 1}" if nodes > 1 else "0"
    return Case(nodes=nodes, env=everywhere, inference=everywhere, learner="0", pixels=pixels)


CASES_BY_NAME = {
    **{f"{count} node{'s' * (count > 1)}, 64 px": _spread(count, 64) for count in (1, 2, 3)},
    "apart, 64 px": Case(nodes=3, env="1", inference="2", learner="2"),
    "apart, 224 px": Case(nodes=3, env="1", inference="2", learner="2", pixels=224),
    "link cut": Case(nodes=2, env="0", inference="0-1", learner="0", fault=Machine.cut),
    "raylet killed": Case(nodes=2, env="0-1", inference="0", learner="0", fault=kill_ray),
    **{f"{count} node{'s' * (count > 1)}, 224 px": _spread(count, 224) for count in (1, 2, 3)},
}


def measure(name: str) -> dict[str, Any]:
    """Run a case on new machines, and return its result."""
    case = CASES_BY_NAME[name]
    with machines(case.nodes, rate=LINK_RATE) as made:
        start_cluster(made)
        run = Run(made, RUNS_FOLDER / name.replace(", ", "-").replace(" ", "-"), case.settings())
        run.reach(WARM_UP_STEPS)
        return _fault(run, case, made[1]) if case.fault else _steady(run, case, made)


def _steady(run: Run, case: Case, made: list[Machine]) -> dict[str, Any]:
    before, first, began = [machine.traffic() for machine in made], run.steps, time.monotonic()
    run.reach(first + MEASURED_STEPS)
    seconds, steps = time.monotonic() - began, run.steps - first
    after = [machine.traffic() for machine in made]
    decisions = steps * case.samples
    return {
        "decisions_per_s": round(decisions / seconds, 1),
        "seconds": round(seconds, 1),
        "load": round(os.getloadavg()[0], 1),
        "bytes_per_decision": [
            [round((now - then) / decisions) for now, then in zip(*both, strict=True)]
            for both in zip(after, before, strict=True)
        ],
    }


def _fault(run: Run, case: Case, victim: Machine) -> dict[str, Any]:
    assert case.fault is not None
    case.fault(victim)
    times = [time.monotonic()]

    def note() -> None:
        times.append(time.monotonic())

    # Workers' own connections go on until Ray has given up the node.
    while not (said := [line.strip() for line in run.log.read_text().splitlines() if NODE_LOST_TEXT in line]):
        run.reach(run.steps + 1, seen=note)
    noticed_s = time.monotonic() - times[0]
    run.reach(run.steps + STEPS_AFTER_FAULT, seen=note)
    still_s = max(late - early for early, late in pairwise(times))
    return {"noticed_s": round(noticed_s, 1), "still_s": round(still_s, 1), "said": said}


@app.command()
def main(
    only: Annotated[str | None, typer.Option(help="Measure only this case, also if it has a result.")] = None,
    report: Annotated[bool, typer.Option(help="Only print the results.")] = False,
) -> None:
    """Measure the cases without a result, and print the tables."""
    store = ResultStore(RESULTS_FILE)
    if not report:
        if why := unavailable(programs=("ip", "tc", "unshare", "nsenter", "pkill")):
            sys.exit(why)
        for name in [only] if only else [name for name in CASES_BY_NAME if name not in store.results]:
            store.add(name, measure(name))
    print(tables(store.results))


if __name__ == "__main__":
    app()

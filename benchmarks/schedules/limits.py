"""How much of the bound can be had at all: `python -m benchmarks.schedules.limits`.

The bound is the longest of three times, of environments, of inference and of the learner, as if they never
waited for each other. They do, by what a mode is: a sample may be one version old and no older, a batch
needs every environment, a request finds a forward pass in progress, a pass ends with a micro-batch. So
every mode is planned twice, over many steps: with the costs that were fitted to `balanced`, and without any,
where requests, pieces and weights travel in no time. What is missing of 1 without costs is the schedule's,
the rest the machinery's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from typing import NamedTuple

from rlinf_async.lab.bench.modes import BENCH_MODES
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME, Scenario
from rlinf_async.lab.emulated.service import EnvService, decisions, resets
from rlinf_async.lab.plan.bench import FIRST_SEED, FITTED_COSTS, Costs, Steps, predict_cell
from rlinf_async.lab.table import markdown

WINDOW = Steps(warm_up=4, measured=40, batches=46)
WITHOUT_COSTS = Costs(**{field.name: 0.0 for field in fields(Costs)})
SHOWN = (
    ("libero", "full"),
    ("balanced", "full"),
    ("balanced", "full-scorer"),
    ("train-bound", "full"),
    ("train-bound", "full-scorer"),
    ("resets", "full"),
    ("resets", "full-scorer"),
    ("long-tail", "full"),
    ("maniskill", "full"),
)


class Limit(NamedTuple):
    """Overlap efficiencies that are planned for one mode of a scenario."""

    scenario: str
    mode: str
    with_costs: float
    without: float


def limits() -> Iterator[Limit]:
    """Of every mode that is `SHOWN`."""
    for name, mode in SHOWN:
        scenario = SCENARIOS_BY_NAME[name]
        best = scenario.samples * scenario.chunk / bound_s(scenario, WINDOW.measured)
        planned = (
            predict_cell(scenario, BENCH_MODES[mode], costs, WINDOW)
            for costs in (FITTED_COSTS, WITHOUT_COSTS)
        )
        yield Limit(name, mode, *(one / best for one in planned))


def bound_s(scenario: Scenario, steps: int) -> float:
    """Seconds of a global step by the bound of `bench.measure`, over the first `steps` of a run."""
    policy, env = scenario.policy, scenario.env
    assert policy is not None
    assert env is not None
    answer_s = scenario.decisions * policy.act_s(1)
    return max(
        max(_alone_s(env, number, scenario.decisions, steps) for number in range(scenario.envs)) + answer_s,
        scenario.decisions * policy.act_s(scenario.envs),
        scenario.samples * scenario.update_epoch * policy.train_sample_s,
    )


def _alone_s(env: EnvService, number: int, horizon: int, steps: int) -> float:
    """What environment `number` takes by itself for the decisions and resets of a global step."""
    if env.vectorised_s:
        return horizon * env.vectorised_s + env.reset_s
    drawn = islice(decisions(env, number, seed=FIRST_SEED), horizon * steps)
    between = [] if env.episode else islice(resets(env, number, seed=FIRST_SEED), steps)
    return (sum(one.seconds + one.reset_s for one in drawn) + sum(between)) / steps


def main() -> None:
    """Print the table."""
    rows = [
        [f"`{one.scenario}`", f"`{one.mode}`", f"{one.with_costs:.3f}", f"{one.without:.3f}"]
        for one in limits()
    ]
    print(markdown(["scenario", "mode", "planned", "planned, no costs"], rows))


if __name__ == "__main__":
    main()

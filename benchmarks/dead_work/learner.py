"""Measure the CPU seconds per batch of RLinf's actor, with and without the samples that have no gradient.

    python -m benchmarks.dead_work.learner benchmarks/dead_work/learner.json

There are two cases, both measured by turns. In the first, PPO trains episodes that end after 40 % of the
horizon on average, on one and two learner ranks (gloo). In the second, GRPO trains batches with equal rewards
in half of the groups, on eight emulated ranks: each rank is trained by itself, with as many passes for an
optimizer step as the fullest of the eight needs, and a step takes as long as its slowest rank. The policy is
RLinf's MLP with layers of 768 units instead of 256, so that the cost of rows is visible beside the fixed cost
of a batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.config import resolve, write_back
from tests.hosts.rlinf.learners import SIZES, actor_of, learner_of, run_cases
from tests.hosts.rlinf.synthetic import Case, fields, pieces
from tests.making import accept

Batch = dict[str, torch.Tensor]
ENV_COUNT, HORIZON_DECISIONS, GROUP_SIZE = 256, 20, 8
BATCH_OVERRIDES = (
    f"env.train.total_num_envs={ENV_COUNT}",
    "env.train.rollout_epoch=1",
    f"env.train.max_episode_steps={HORIZON_DECISIONS}",
    f"env.train.max_steps_per_rollout_epoch={HORIZON_DECISIONS}",
    "algorithm.update_epoch=1",
)
EMULATED_RANKS = 8
TURN_COUNT = 3
ALL_SAMPLES, LIVE_SAMPLES = "all samples", "live samples"


class Wide(torch.nn.Linear):
    """A linear layer with 768 units in place of 256."""

    def __init__(self, inputs: int, outputs: int, **more: Any) -> None:
        inputs, outputs = (768 if size == 256 else size for size in (inputs, outputs))
        super().__init__(inputs, outputs, **more)


def learner(skips: bool, algorithm: str, *, ranks: int, micro: int, total: int) -> tuple[Any, Any, Any]:
    mode = ("async.mode=lean",) if skips else ("async.mode=rollout", "async.skip=false")
    sizes = (f"actor.micro_batch_size={micro}", f"actor.global_batch_size={total}")
    group = (
        (f"algorithm.group_size={GROUP_SIZE}", f"env.train.group_size={GROUP_SIZE}")
        if algorithm == "grpo"
        else ()
    )
    cfg = compose_config(f"metaworld_{algorithm}_mlp", [*SIZES, *BATCH_OVERRIDES, *sizes, *group, *mode])
    settings, own = resolve(cfg, sizes={"env": 1, "rollout": 1, "actor": ranks}), cfg.copy()
    write_back(own, settings)
    with mock.patch.object(torch.nn, "Linear", Wide):
        actor = actor_of(StreamingActorWorker, own)
    return actor, settings, learner_of(actor, settings)


def ending_early(plan: Any, horizon: int) -> Batch:
    """Return a batch with episodes of 1 to 15 of 20 decisions: 40 % of the horizon on average."""
    draw = torch.Generator().manual_seed(3)
    batch = fields(plan, horizon)
    lengths = torch.randint(1, 16, (plan.rollout_epochs, 1, plan.total_envs), generator=draw)
    batch["dones"] = (torch.arange(horizon + 1)[None, :, None] >= lengths)[..., None]
    return batch


def half_silent(plan: Any, horizon: int, seed: int, *, chance: bool) -> Batch:
    """Return a batch without episode ends; half of its groups have equal rewards.

    With `chance` each group is drawn with probability 0.5, otherwise every second group is taken.
    """
    draw = torch.Generator().manual_seed(seed)
    batch = fields(plan, horizon, seed=seed)
    batch["dones"] = torch.zeros_like(batch["dones"])
    groups = plan.total_envs // GROUP_SIZE
    silent = torch.rand(groups, generator=draw) < 0.5 if chance else torch.arange(groups) % 2 == 0
    batch["rewards"] = batch["rewards"] * ~silent.repeat_interleave(GROUP_SIZE)[None, None, :, None]
    return batch


def train(
    actor: Any, settings: Any, made: Any, batch: Batch, rank: int, index: int
) -> tuple[list[float], dict[str, float]]:
    """Train one batch; return the CPU seconds of each optimizer step, and the learner's report."""
    marks = [time.process_time()]
    step = type(actor).optimizer_step

    def marked() -> Any:
        result = step(actor)
        marks.append(time.process_time())
        return result

    actor.optimizer_step = marked
    arriving = pieces(settings.plan, batch, rank, index=index)
    for piece in arriving:
        del piece.payload["bootstrap_inputs"]
    actor.set_global_step(index)
    made.begin(index)
    accept(made, arriving)
    report = made.finish()
    return [after - before for before, after in pairwise(marks)], report


def ended(case: Case, rank: int, ranks: int, known: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    made = {
        name: learner(name == LIVE_SAMPLES, "ppo", ranks=ranks, micro=256, total=2560)
        for name in (ALL_SAMPLES, LIVE_SAMPLES)
    }
    for turn in range(TURN_COUNT + 1):
        for name, (actor, settings, trains) in made.items():
            seconds, report = train(
                actor, settings, trains, ending_early(settings.plan, settings.horizon), rank, turn
            )
            if turn:  # turn 0 is the warm-up
                found.setdefault(name, []).append(sum(seconds))
            found[f"{name} skipped"] = report.get("async/skipped/samples", 0.0)
    return {"found": found}


def silent(case: Case, rank: int, ranks: int, known: object) -> dict[str, Any]:
    return {"found": {kind: _emulated(chance=kind == "by chance") for kind in ("by chance", "evenly")}}


def _emulated(*, chance: bool) -> dict[str, list[float]]:
    """Return the CPU seconds of batches on the emulated ranks; a step takes as long as its slowest rank."""
    totals: dict[str, list[float]] = {ALL_SAMPLES: [], LIVE_SAMPLES: []}
    made = {name: learner(name == LIVE_SAMPLES, "grpo", ranks=1, micro=256, total=2560) for name in totals}
    needs: list[list[int]] = []
    for turn in range(TURN_COUNT + 1):
        for name, (actor, settings, trains) in made.items():
            batches = [
                half_silent(settings.plan, settings.horizon, 100 + rank, chance=chance)
                for rank in range(EMULATED_RANKS)
            ]
            if name == LIVE_SAMPLES and not needs:
                needs = [_needs(actor, settings, trains, batch) for batch in batches]
            agreed = [max(step) for step in zip(*needs, strict=True)]
            steps = []
            for batch in batches:
                if actor.live is not None:
                    asked = iter(agreed)
                    actor.live._most = lambda count, asked=asked: next(asked)
                steps.append(train(actor, settings, trains, batch, 0, turn)[0])
            if turn:
                totals[name].append(sum(max(each) for each in zip(*steps, strict=True)))
    return totals


def _needs(actor: Any, settings: Any, trains: Any, batch: Batch) -> list[int]:
    """Return the number of passes that a rank needs for each optimizer step."""
    asked: list[int] = []

    def alone(count: int) -> int:
        asked.append(count)
        return count

    actor.live._most = alone
    train(actor, settings, trains, batch, 0, 0)
    return asked


def main(path: str) -> None:
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for ranks in (1, 2):
            case = Case(name="ended")
            found = run_cases(ranks, [case], Path(directory), run=ended)["ended"]["found"]
            results[f"ppo, ends at 40 %, {ranks} rank{'s' * (ranks > 1)}"] = _ratio(found) | {
                "skipped": found[f"{LIVE_SAMPLES} skipped"]
            }
        found = run_cases(1, [Case(name="silent")], Path(directory), run=silent)["silent"]["found"]
        for kind, each in found.items():
            results[f"grpo, half of the groups silent {kind}, {EMULATED_RANKS} ranks emulated"] = _ratio(each)
    text = json.dumps(results, indent=2)
    Path(path).write_text(text + "\n")
    sys.stdout.write(text + "\n")


def _ratio(found: Mapping[str, list[float]]) -> dict[str, Any]:
    ratios = [
        live / everything for live, everything in zip(found[LIVE_SAMPLES], found[ALL_SAMPLES], strict=True)
    ]
    rounded = partial(round, ndigits=3)
    return {
        "ratio": rounded(median(ratios)),
        "ratios": [rounded(ratio) for ratio in ratios],
        ALL_SAMPLES: [rounded(seconds) for seconds in found[ALL_SAMPLES]],
        LIVE_SAMPLES: [rounded(seconds) for seconds in found[LIVE_SAMPLES]],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])

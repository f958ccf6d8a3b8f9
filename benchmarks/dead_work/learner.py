"""Measure the CPU seconds per batch of RLinf's actor, with and without the samples that have no gradient.

    python -m benchmarks.dead_work.learner benchmarks/dead_work/learner.json

There are two cases, both measured by turns. In the first, PPO trains episodes that end after 40 % of the
horizon on average, on one and two learner ranks (gloo). In the second, GRPO trains batches with equal rewards
in half of the groups, on eight emulated ranks: each rank is trained by itself, with the rows that it would
get from others and as many passes for an optimizer step as the fullest of the eight needs, and a step takes
as long as its slowest rank. The policy is RLinf's MLP with layers of 768 units instead of 256, so that the
cost of rows is visible beside the fixed cost of a batch; for PPO also with 2048.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from benchmarks.result_store import ResultStore
from rlinf_async.compose import compose_config
from rlinf_async.core.tensors import Tree
from rlinf_async.hosts.kit.rank_exchange import bytes_of, tree_of
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.config import resolve, write_back
from rlinf_async.hosts.rlinf.live_training import EvenRows
from rlinf_async.hosts.rlinf.packed_loss import WholeLoss
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
SILENT_KINDS = ("by chance", "evenly")
ALL_SAMPLES, LIVE_SAMPLES = "all samples", "live samples"


UNITS, MORE_UNITS = 768, 2048
OPTIMIZER, SKIPPED = "optimizer steps", "skipped"


def wide(units: int) -> type[torch.nn.Linear]:
    """Return a linear layer with `units` in place of 256."""

    class Wide(torch.nn.Linear):
        def __init__(self, inputs: int, outputs: int, **more: Any) -> None:
            inputs, outputs = (units if size == 256 else size for size in (inputs, outputs))
            super().__init__(inputs, outputs, **more)

    return Wide


def learner(
    skips: bool, algorithm: str, *, ranks: int, micro: int, total: int, units: int = UNITS
) -> tuple[Any, Any, Any]:
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
    with mock.patch.object(torch.nn, "Linear", wide(units)):
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
    """Train one batch; return the CPU seconds of each optimizer step with its passes, and the learner's
    report with those of the steps alone.
    """
    marks = [time.process_time()]
    step, own = type(actor).optimizer_step, 0.0

    def marked() -> Any:
        nonlocal own
        before = time.process_time()
        result = step(actor)
        marks.append(time.process_time())
        own += marks[-1] - before
        return result

    actor.optimizer_step = marked
    arriving = pieces(settings.plan, batch, rank, index=index)
    for piece in arriving:
        del piece.payload["bootstrap_inputs"]
    actor.set_global_step(index)
    made.begin(index)
    accept(made, arriving)
    report = made.finish()
    return [after - before for before, after in pairwise(marks)], {**report, OPTIMIZER: own}


def ended(case: Case, rank: int, ranks: int, known: object, *, units: int, turns: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    made = {
        name: learner(name == LIVE_SAMPLES, "ppo", ranks=ranks, micro=256, total=2560, units=units)
        for name in (ALL_SAMPLES, LIVE_SAMPLES)
    }
    for turn in range(turns + 1):
        for name, (actor, settings, trains) in made.items():
            seconds, report = train(
                actor, settings, trains, ending_early(settings.plan, settings.horizon), rank, turn
            )
            if turn:  # turn 0 is the warm-up
                found.setdefault(name, []).append(sum(seconds))
                found.setdefault(f"{name}, {OPTIMIZER}", []).append(report[OPTIMIZER])
            found[f"{name}, {SKIPPED}"] = report.get("async/skipped/samples", 0.0)
    return {"found": found}


def silent(case: Case, rank: int, ranks: int, known: object) -> dict[str, Any]:
    return {"found": {kind: _emulated(chance=kind == "by chance") for kind in SILENT_KINDS}}


class EmulatedExchange:
    """The exchange of an emulated rank. The other ranks' numbers and trees are those of their last training,
    or missing.
    """

    def __init__(
        self,
        rank: int,
        counts: dict[tuple[int, int], int],
        trees: dict[tuple[int, ...], torch.Tensor],
        *,
        knows: bool,
    ) -> None:
        """
        Args:
            counts: by rank and step; shared by all ranks, as `trees` are, by sender, receiver, step and call.
            knows: whether the numbers of all ranks are known.
        """
        self.rank, self._counts, self._trees, self._knows = rank, counts, trees, knows
        self._step, self._swap = -1, 0

    def counts(self, own: int) -> list[int]:
        self._step, self._swap = self._step + 1, 0
        self._counts[self.rank, self._step] = own
        ranks = range(EMULATED_RANKS) if self._knows else ()
        return [self._counts[rank, self._step] for rank in ranks] or [own]

    def swap(self, sent: Mapping[int, Tree], senders: Collection[int]) -> dict[int, Tree]:
        call = (self._step, self._swap)
        self._swap += 1
        for receiver, tree in sent.items():
            self._trees[(self.rank, receiver, *call)] = bytes_of(tree)
        found = {sender: self._trees.get((sender, self.rank, *call)) for sender in senders}
        return {sender: tree_of(data) for sender, data in found.items() if data is not None}


class EmulatedRows(EvenRows):
    """Rows of emulated ranks; rows that no rank has computed yet are not returned."""

    def settle(self) -> Iterator[WholeLoss]:
        with suppress(KeyError):
            yield from super().settle()


WARM_UPS = 3
"""Trainings of all emulated ranks that are not measured: the first shows the numbers of rows, the second the
rows that move, the third the results of these rows."""


def _emulated(*, chance: bool) -> dict[str, list[float]]:
    """Return the CPU seconds of batches on the emulated ranks; a step takes as long as its slowest rank."""
    totals: dict[str, list[float]] = {ALL_SAMPLES: [], LIVE_SAMPLES: []}
    made = {name: learner(name == LIVE_SAMPLES, "grpo", ranks=1, micro=256, total=2560) for name in totals}
    counts: dict[tuple[int, int], int] = {}
    trees: dict[tuple[int, ...], torch.Tensor] = {}
    agreed: list[int] = []
    for turn in range(WARM_UPS + TURN_COUNT):
        for name, (actor, settings, trains) in made.items():
            steps, needs = [], []
            for rank in range(EMULATED_RANKS):
                batch = half_silent(settings.plan, settings.horizon, 100 + rank, chance=chance)
                if actor.live is not None:
                    own = _Passes(agreed if turn >= WARM_UPS - 1 else [])
                    needs.append(own.needed)
                    actor.live._passes._most = own
                    exchange = EmulatedExchange(rank, counts, trees, knows=turn > 0)
                    actor.live._even = EmulatedRows(
                        actor.live._passes, actor.live._loss, exchange, actor.held_inputs
                    )
                steps.append(train(actor, settings, trains, batch, 0, turn)[0])
            agreed = [max(step) for step in zip(*needs, strict=True)] or agreed
            if turn >= WARM_UPS:
                totals[name].append(sum(max(each) for each in zip(*steps, strict=True)))
    return totals


class _Passes:
    """The passes that ranks agree on for each optimizer step, once known; notes the needed passes."""

    def __init__(self, agreed: Sequence[int]) -> None:
        self._agreed = iter(agreed)
        self.needed: list[int] = []

    def __call__(self, count: int) -> int:
        self.needed.append(count)
        return max(count, next(self._agreed, 0))


def main(path: str) -> None:
    """Measure the cases that the file at `path` lacks, and print all of them."""
    store = ResultStore(Path(path))
    sizes = ((1, UNITS, 9), (2, UNITS, 9), (1, MORE_UNITS, TURN_COUNT), (2, MORE_UNITS, TURN_COUNT))
    for ranks, units, turns in sizes:
        name = f"ppo, ends at 40 %, {ranks} rank{'s' * (ranks > 1)}, {units} units"
        if name not in store.results:
            found = _found(ranks, partial(ended, units=units, turns=turns))
            store.add(name, _ratio(found) | _least(found))
    names = {
        kind: f"grpo, half of the groups silent {kind}, {EMULATED_RANKS} ranks emulated"
        for kind in SILENT_KINDS
    }
    if not names.keys() <= {kind for kind, name in names.items() if name in store.results}:
        for kind, each in _found(1, silent).items():
            store.add(names[kind], _ratio(each))
    sys.stdout.write(json.dumps(store.results, indent=2) + "\n")


def _found(ranks: int, run: Callable[..., Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        found: dict[str, Any] = run_cases(ranks, [Case(name="case")], Path(directory), run=run)["case"][
            "found"
        ]
    return found


def _least(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of samples that are left out, and the least possible ratio: rows without overhead,
    plus the optimizer's steps, which are always made.
    """
    skipped = found[f"{LIVE_SAMPLES}, {SKIPPED}"]
    steps = sum(found[f"{ALL_SAMPLES}, {OPTIMIZER}"]) / sum(found[ALL_SAMPLES])
    return {
        SKIPPED: round(skipped, 3),
        f"{OPTIMIZER}, share of all samples' seconds": round(steps, 3),
        "least ratio": round((1 - skipped) * (1 - steps) + steps, 3),
    }


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

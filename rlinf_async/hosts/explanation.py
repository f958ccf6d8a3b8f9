"""The common part of all hosts' explanations of a run: its levels, its sizes, and remarks on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlinf_async.config import AsyncConfig, RolloutConfig
from rlinf_async.core.sharding import one_batch, splitting
from rlinf_async.hosts import dead_work
from rlinf_async.hosts.judge.reasons import Change
from rlinf_async.hosts.simulators import hold_one_environment
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.wire.listening import places

PUBLICATION_SENTENCE = "published beside training: the learner copies them and goes on"
PROXIMAL_SENTENCES = {
    "recomputed": "recomputed: a pass without gradients over every batch",
    "loglinear": "loglinear: interpolated, without that pass; train/proximal_error says how far it is off",
}
SHARED_SCORING = (
    "idle inference ranks score samples that the learner has not reached, from the second batch on, if the "
    "first shows that both compute the same"
)

SYNCHRONOUS_NOTE = "off: the synchronous schedule, in workers of this package"

NamedText = tuple[str, str]


def level_facts(asynchrony: AsyncConfig) -> dict[str, Any]:
    """Return the settings that the `async` block asks for, as plain data."""
    train, weighting = asynchrony.train, asynchrony.weighting
    bound = weighting.max_weight if weighting else math.inf
    return {
        "mode": asynchrony.mode,
        "levels": asynchrony.levels,
        "skip": asynchrony.skip.kinds,
        "dead_work": [],
        "max_staleness": asynchrony.max_staleness,
        "correction": train.correction if asynchrony.off_policy else "none needed",
        # JSON has no infinity, and `--json` prints these facts.
        "max_weight": None if math.isinf(bound) else bound,
        "proximal": asynchrony.advanced.proximal if weighting else None,
        "deterministic": asynchrony.deterministic,
    }


def run_facts(settings: RunSettings, *, section: Mapping[str, Any], stages: int, key: str) -> dict[str, Any]:
    """Return the sizes of a run, its weight publication, the effect of a process's death and the listening
    processes, as plain data; arguments as of `why_so_many`.
    """
    rollout = settings.asynchrony.rollout
    return {
        **_size_facts(settings, why=why_so_many(section, rollout, stages=stages, key=key)),
        "publication": PUBLICATION_SENTENCE,
        "deaths": deaths(settings),
        "scorer": scorer(settings),
        "learner_scores": settings.learner_scores,
        "listens": places(inference_scores=settings.scored_by_inference),
    }


def scorer(settings: RunSettings) -> str | None:
    """Return a sentence on the processes that recompute a batch's log-probabilities; None if none do."""
    if not settings.asynchrony.recomputes:
        return None
    if settings.scored_by_inference:
        return SHARED_SCORING
    without = "inference can score parts of it only with levels 2 and 3 on"
    return f"the learner scores every batch by itself: {settings.learner_scores or without}"


def _size_facts(settings: RunSettings, *, why: str) -> dict[str, Any]:
    plan, rollout = settings.plan, settings.asynchrony.rollout
    return {
        "shards": {
            "total": plan.shards,
            "per_env_worker": plan.shards_per_worker,
            "environments_each": plan.envs_per_shard,
            "group_size": plan.group_size,
            "why": why,
        },
        "ranks": {
            "env": plan.env_workers,
            "inference": plan.inference_ranks,
            "learner": plan.learner_ranks,
        },
        "inference_batch": {
            "at_most": settings.max_batch_size if rollout.enabled else "everybody in flight",
            "max_wait_ms": rollout.max_wait * 1000,
            "padded_to": list(settings.buckets) or "its own size",
        },
        "batch": {
            "trajectories_per_step": plan.trajectories_per_batch,
            "decisions_per_trajectory": settings.horizon,
            "samples_per_step": settings.samples_per_batch,
            "global_batch_size": settings.global_batch_size,
            "optimizer_steps_per_step": settings.optimizer_steps * settings.update_epoch,
            "micro_batch_size": settings.micro_batch_size,
            "micro_batches_per_optimizer_step": settings.micro_batches_per_step,
            "env_steps_per_step": settings.samples_per_batch * settings.steps_per_decision,
            "steps": settings.batches,
        },
    }


def deaths(settings: RunSettings) -> str:
    """Return the effect of the death of an env worker or an inference rank, as the end of a sentence."""
    survive, restartable = settings.asynchrony.survive, settings.restartable
    window_s = settings.asynchrony.advanced.window_s
    if not survive.process_restarts:
        return "ends the run (async.survive.process_restarts=0)"
    if not restartable:
        return "ends the run: processes that leave their accelerators to each other are not started again"
    return f"is started again, {survive.process_restarts} times in {window_s:g} s"


def why_so_many(train: Mapping[str, Any], rollout: RolloutConfig, *, stages: int, key: str) -> str:
    """Return the reason for the number of shards, as a sentence.

    Args:
        train: the `env` section of the training environments.
        stages: the number of shards in the framework's config, at `key`, which applies unless level 2 sets
            one.
    """
    simulator = str(train["env_type"])
    # The same order of conditions as in `simulators.divide` and `core.sharding.choose_shards`.
    if hold_one_environment(train):
        return f"{simulator} simulates one environment at a time on the CPU: each is a shard"
    if not rollout.enabled:
        least = "" if one_batch(train) else ", and at least one for each inference rank"
        return f"level 2 is off: {key} for each env worker{least}"
    if rollout.shards != "auto":
        return "async.rollout.shards"
    how = splitting(train)
    if how == "vectorised":
        return f"auto: {simulator} batches its environments on an accelerator and is not split"
    if stages > 1:
        return f"auto: {key} is kept"
    if how == "unknown":
        return (
            f"auto: {simulator} is not split, as it is not examined here; async.rollout.shards=2 splits it, "
            "which costs time where it batches its environments on an accelerator"
        )
    if how == "apart":
        return f"auto: every {simulator} simulator has a process of its own, so that none waits for another"
    return "auto: simulators share the env worker's process; one shard steps while another is answered"


def level_rows(facts: Mapping[str, Any], *, none: str) -> Iterator[NamedText]:
    """Yield rows with the levels that are on; `none` is the sentence for a run without any."""
    on = [name for name, is_on in facts["levels"].items() if is_on]
    yield "levels", ", ".join(on) or (SYNCHRONOUS_NOTE if any(facts["skip"].values()) else none)
    for name in on:
        yield f"  {name}", facts["exactness"][name]
    yield from dead_work.rows(facts)


def change_rows(facts: Mapping[str, Any]) -> Iterator[NamedText]:
    """Yield rows with the settings that the levels change."""
    for change in facts["changes"]:
        yield "changed", str(Change(**change))


def correction_rows(facts: Mapping[str, Any]) -> Iterator[NamedText]:
    """Yield rows with the bound on staleness and the off-policy correction."""
    yield "max staleness", str(facts["max_staleness"])
    yield "correction", facts["correction"]
    if facts["proximal"]:
        yield "  proximal", PROXIMAL_SENTENCES[facts["proximal"]]
    if facts.get("scorer"):
        yield "  scored by", facts["scorer"]
    partly = facts.get("scored")
    if partly or facts["max_weight"]:
        bound = f"at most {facts['max_weight']:g}" if facts["max_weight"] else ""
        yield "  weights", "; ".join(filter(None, [partly, bound]))
    if facts["deterministic"]:
        yield "deterministic", "every run with these settings gives the same weights, bit for bit"
    if "publication" in facts:
        yield "new weights", facts["publication"]
    if "deaths" in facts:
        yield "a dead process", facts["deaths"]


def size_rows(facts: Mapping[str, Any]) -> Iterator[NamedText]:
    """Yield rows with the sizes from `run_facts`."""
    ranks, shards, inference, batch = (facts[key] for key in ("ranks", "shards", "inference_batch", "batch"))
    yield "ranks", ", ".join(f"{name} {count}" for name, count in ranks.items())
    yield (
        "shards",
        f"{shards['total']}, {shards['per_env_worker']} per env worker; {shards['environments_each']} "
        f"environments each, in groups of {shards['group_size']}",
    )
    yield "  why", shards["why"]
    yield (
        "inference",
        f"batches of at most {inference['at_most']}, wait {inference['max_wait_ms']:g} ms, padded to "
        f"{inference['padded_to']}",
    )
    yield (
        "a step",
        f"{batch['trajectories_per_step']} trajectories x {batch['decisions_per_trajectory']} decisions = "
        f"{batch['samples_per_step']} samples, {batch['env_steps_per_step']} env steps",
    )
    yield (
        "  training",
        f"{batch['optimizer_steps_per_step']} optimizer steps of {batch['global_batch_size']} samples, each "
        f"in {batch['micro_batches_per_optimizer_step']} micro-batches of {batch['micro_batch_size']} a rank",
    )
    yield "steps", str(batch["steps"])


def listening_rows(facts: Mapping[str, Any]) -> Iterator[NamedText]:
    """Yield rows with the addresses on which processes listen."""
    by_process: dict[str, list[str]] = {}
    for place in facts["listens"]:
        by_process.setdefault(place["who"], []).append(place["what"])
    beyond = {place["who"] for place in facts["listens"] if place["other_nodes"]}
    near = " and ".join(process for process in by_process if process not in beyond)
    yield (
        "listening",
        "; ".join(f"{process}: {', '.join(uses)}" for process, uses in by_process.items()),
    )
    yield (
        "  where",
        "unix sockets without a file; in a Ray cluster of several nodes all but "
        f"{near} also TCP, on free ports of the address that Ray uses for their node; each has a token",
    )


def show_rows(rows: Iterable[NamedText], notes: Iterable[str], console: Console) -> None:
    """Print rows and notes as one table."""
    table = Table(show_header=False, title="What this config does", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (*rows, *(("note", note) for note in notes)):
        # Values contain brackets, which rich would take for markup and not print.
        table.add_row(name, escape(text))
    console.print(table)

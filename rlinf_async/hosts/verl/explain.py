"""The explanation of a veRL config, computed without starting Ray or importing veRL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from rlinf_async.core.config_keys import dotted, lookup, misspelt_key, shortened
from rlinf_async.core.footprint import LearnerFootprint
from rlinf_async.core.precision import bytes_of
from rlinf_async.entry_points import find
from rlinf_async.hosts import dead_work, explanation, workers
from rlinf_async.hosts import footprints as memory
from rlinf_async.hosts.async_block import plain, read_block, unused_settings
from rlinf_async.hosts.dead_work import why_later_steps_count
from rlinf_async.hosts.exactness import own_chance, rollout_exactness, streamer_exactness, train_exactness
from rlinf_async.hosts.footprints import ModelSize
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster, counterparts
from rlinf_async.hosts.kit.policy_size import is_declared, parameters
from rlinf_async.hosts.remarks import own_sections, unread_keys
from rlinf_async.hosts.remarks import remarks as run_remarks
from rlinf_async.hosts.verl import left_out
from rlinf_async.hosts.verl.algorithms import SELECTING_LOSSES, streams
from rlinf_async.hosts.verl.checkpoint import beginning
from rlinf_async.hosts.verl.config import filled_in, runnable_settings
from rlinf_async.hosts.verl.defaults import changes, defaults, is_known
from rlinf_async.hosts.verl.placement import in_words
from rlinf_async.hosts.verl.reasons import TABLE
from rlinf_async.hosts.verl.settings import VerlSettings, section
from rlinf_async.hosts.verl.units import missing_units, trial_policy
from rlinf_async.hosts.verl.view import ACTOR_SECTION, ROLLOUT_SECTION, UNITS_KEY, VerlView

OUR_SECTIONS = ("async", "defaults", "env", "hydra", "model_engine", "vla")
"""Sections that are not in veRL's list of keys; veRL itself adds `model_engine` when a config is composed."""


def explain(config: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
    """Return the plan of a run of `config` on `cluster`, as plain data that `--json` prints.

    Raises:
        ValueError: the config cannot run, with the remedy.
    """
    cfg = plain(config)
    settings = runnable_settings(cfg)
    cfg = filled_in(cfg)
    view = VerlView.of(cfg)
    # Memory of accelerators means nothing on CPUs, but a config may be explained for another cluster.
    on_cpus = view.device == "cpu" and cluster == THIS_MACHINE
    return {
        **explanation.level_facts(settings.asynchrony),
        "dead_work": dead_work.of_own_workers(
            settings.asynchrony,
            steps_per_decision=settings.steps_per_decision,
            skips_ended=settings.skips_ended,
            left_out=settings.left_out,
            kept=why_later_steps_count(section(view, "train")),
            kept_samples=left_out.reasons_kept(view),
        ),
        "changes": [asdict(change) for change in TABLE.changes(cfg)],
        "classes": {
            f"{workers.WORKERS_GROUP}.{name}": find(workers.WORKERS_GROUP, name).value
            for name in ("env", "inference")
        },
        "exactness": exactness(view, settings),
        "device": view.device,
        "placement": in_words(view),
        "adapters": asdict(settings.adapters) if settings.adapters else None,
        **explanation.run_facts(
            settings, section=section(view, "train"), stages=view.stages, key="env.stages"
        ),
        "memory": None if on_cpus else footprints(view, settings, gpu_memory=cluster.gpu_memory),
        "evaluation": _evaluation(view),
        "begins": beginning(OmegaConf.create({"trainer": cfg["trainer"]})),
        "remarks": [*beyond(view, settings, cluster), *remarks(view, settings)],
    }


def _evaluation(view: VerlView) -> str:
    if not view.evaluates:
        return "none"
    every = view.test_interval
    when = [
        *(["before training"] if view.tests_before else []),
        *([f"every {every} steps and after the last"] if every > 0 else []),
    ]
    return f"{section(view, 'eval')['total_num_envs']} environments, {' and '.join(when)}"


def remarks(view: VerlView, settings: VerlSettings) -> Iterator[str]:
    """Yield remarks on a config that can run; a run prints them, too."""
    yield from key_remarks(view.cfg)
    yield from unused_settings(read_block(view.cfg), settings.asynchrony.levels)
    yield from unit_remarks(view)
    if is_declared(view.model):
        own = {name.rpartition(".")[2] for name in TABLE.names if name.startswith("vla.model.")}
        yield from unread_keys(view.model, key="vla.model", own=own)
    if view.own_inference_ranks and view.rollout_nodes:
        yield (
            f"{ROLLOUT_SECTION}.nnodes={view.rollout_nodes} has no effect: vla.inference.ranks="
            f"{view.own_inference_ranks} sets the number of inference ranks"
        )
    mode, path = view.resume_mode, view.resumed_path
    if path and mode != "resume_path":
        yield (
            f"trainer.resume_from_path={path} has no effect: trainer.resume_mode={mode}, resume_path reads it"
        )
    if not view.shuffles and settings.optimizer_steps > 1:
        yield (
            f"{ACTOR_SECTION}.shuffle=false, veRL's default, makes each optimizer step of the same "
            "environments; "
            f"{ACTOR_SECTION}.shuffle=true mixes them"
        )
    if settings.asynchrony.advanced.gpu_shares:
        yield (
            "async.advanced.gpu_shares=true sets no limit: under veRL every learner and inference rank has a "
            "GPU of its own"
        )
    yield from run_remarks(settings, auto_reset=settings.auto_reset)


def exactness(view: VerlView, settings: VerlSettings) -> dict[str, str]:
    """Return `exact`, `approximate (WHY; EXACT SETTING)`, `not examined (WHY)` or `off` for each level."""
    mode, model = view.loss, view.model_type
    selects = f"{mode} selects within a micro-batch, and the order of arrival decides its samples"
    return {
        "train": train_exactness(settings.asynchrony),
        "rollout": rollout_exactness(settings.asynchrony, model=str(model), shares=own_chance(model)),
        "streamer": streamer_exactness(
            settings,
            deferred="normalization is deferred" if streams(settings.estimator) else settings.estimator,
            more=[selects] if mode in SELECTING_LOSSES else [],
        ),
    }


def footprints(view: VerlView, settings: VerlSettings, *, gpu_memory: float | None = None) -> dict[str, Any]:
    """Return the memory of a learner rank and an inference rank, each on its own accelerator.

    No policy is loaded.

    Args:
        gpu_memory: gigabytes of one accelerator; None for an accelerator of this machine.
    """
    model = _model_size(view)
    learner = _learner(view, settings, model)
    # Without a precision the builder decides: assume the type of the learner's stored parameters.
    inference = bytes_of(view.inference_precision, default=learner.stored)
    plan = settings.plan
    return memory.facts(
        settings,
        model=model,
        learner=learner,
        inference=model.parameters * inference,
        places={(1, 0): plan.learner_ranks, (0, 1): plan.inference_ranks},
        gpu_memory=gpu_memory,
        leaves={"learner": False, "inference": False},
        lora=settings.adapters is not None,
    )


def _model_size(view: VerlView) -> ModelSize:
    if not is_declared(view.model):
        return memory.UNKNOWN_SIZE
    return ModelSize(parameters=parameters(view.model, key="vla.model"), source="counted")


def _learner(view: VerlView, settings: VerlSettings, model: ModelSize) -> LearnerFootprint:
    """Return the footprint of a policy under veRL's FSDP2: all of it is trained, or only its adapters."""
    ranks, sharing = settings.plan.learner_ranks, view.fsdp_size
    return LearnerFootprint(
        parameters=model.parameters,
        trainable=0 if settings.adapters else model.parameters,
        stored=bytes_of(view.stored_precision, default=4),
        computed=bytes_of(view.learner_precision, default=2),
        # veRL's fsdp_size=-1 shards over all ranks.
        ranks=min(ranks, sharing) if sharing > 0 else ranks,
        strategy="full_shard" if view.reshards else "shard_grad_op",
        accumulates=view.accumulates and settings.micro_batches_per_step > 1,
    )


def beyond(view: VerlView, settings: VerlSettings, cluster: AssumedCluster) -> Iterator[str]:
    """Yield the demands of a config that the assumed cluster does not meet."""
    nodes, each = view.nodes, view.gpus_per_node
    if cluster.nodes is not None and nodes > cluster.nodes:
        yield f"trainer.nnodes={nodes} is beyond a cluster of {cluster.nodes} nodes"
    if cluster.gpus is None:
        return
    if each > cluster.gpus:
        yield f"trainer.n_gpus_per_node={each} is beyond nodes with {cluster.gpus} GPUs each"
    plan, total = settings.plan, cluster.gpus * (cluster.nodes or nodes)
    if (ranks := plan.learner_ranks + plan.inference_ranks) > total:
        yield (
            f"{plan.learner_ranks} learner and {plan.inference_ranks} inference ranks need {ranks} GPUs, "
            f"and such a cluster has {total}; use fewer trainer.n_gpus_per_node or vla.inference.ranks"
        )
    elif ranks < total:
        yield (
            f"{ranks} of the {total} GPUs of such a cluster are used, by {plan.learner_ranks} learner ranks "
            f"(trainer.nnodes x trainer.n_gpus_per_node) and {plan.inference_ranks} inference ranks "
            "(vla.inference.ranks)"
        )


def show(facts: Mapping[str, Any], console: Console) -> None:
    """Print `explain`'s facts for a reader."""
    lines = (
        *explanation.level_rows(
            facts, none="none: every part waits for the others, around veRL's own update"
        ),
        *explanation.change_rows(facts),
        *explanation.correction_rows(facts),
        ("evaluation", facts["evaluation"]),
        ("begins", facts["begins"]),
        ("device", str(facts["device"])),
        *([("placement", facts["placement"])] if facts["placement"] else []),
        *_adapter_rows(facts),
        *(memory.rows(facts["memory"]) if facts["memory"] else ()),
        *explanation.size_rows(facts),
        *explanation.listening_rows(facts),
    )
    explanation.show_rows(lines, facts["remarks"], console)


def _adapter_rows(facts: Mapping[str, Any]) -> Iterator[explanation.NamedText]:
    if adapters := facts["adapters"]:
        yield (
            "adapters",
            f"of rank {adapters['rank']} on {adapters['targets']}, trained alone with the value_head",
        )


def key_remarks(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each key of `cfg` (plain data) that does less than it says."""
    yield from TABLE.without_effect(changes(cfg))
    # A key of another framework that contradicts the key of the same setting here.
    for key, value in dotted(cfg).items():
        names = [name for name in counterparts(key) if name in TABLE.names]
        if value is None or not names or key in TABLE.names:
            continue
        if (counting := lookup(cfg, names[0])) != value:
            reader = "only the environment reads" if key.startswith("env.") else "nothing reads"
            yield f"{reader} {key}={shortened(value)}: the run uses {names[0]}={shortened(counting)}"
    for key, value in dotted({"env": cfg.get("env")}).items():
        if key not in TABLE.names and value is not None and (near := misspelt_key(key, TABLE.names)):
            yield f"neither veRL nor rlinf-async reads {key}={shortened(value)}; did you mean {near}?"
    for key, value in changes(cfg):
        if TABLE.find(key) is None and is_known(key, defaults()):
            yield (
                f"{key}={shortened(value)}: the effect of this key under trainer_mode vla_async was not "
                "examined"
            )
    if defaults():
        yield from own_sections(cfg, {*defaults(), *OUR_SECTIONS}, framework="veRL")


def unit_remarks(view: VerlView) -> Iterator[str]:
    """Yield a remark if some of the classes that FSDP2 is told to wrap are of no layer of the policy."""
    policy = None if isinstance(view.units, str) else trial_policy(view)
    if policy is not None and (names := missing_units(policy, view.units or ())):
        yield f"{UNITS_KEY}: {type(policy).__name__} has no layer {', '.join(names)}"

"""The explanation of a config of veRL, worked out without starting Ray or importing veRL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from rlinf_async.core.nested import lookup
from rlinf_async.entry_points import find
from rlinf_async.hosts import explanation, workers
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.footprints import rows as memory_rows
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster
from rlinf_async.hosts.verl.block import whole
from rlinf_async.hosts.verl.checkpoint import beginning
from rlinf_async.hosts.verl.exactness import exactness
from rlinf_async.hosts.verl.footprints import footprints
from rlinf_async.hosts.verl.keys import other_words, undecided, unread_sections, without_effect
from rlinf_async.hosts.verl.placement import in_words
from rlinf_async.hosts.verl.presence import checked
from rlinf_async.hosts.verl.refusals import changed
from rlinf_async.hosts.verl.settings import VerlSettings
from rlinf_async.hosts.verl.sizes import ACTOR_SECTION, beyond, evaluates, section


def explain(config: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
    """Plain data that `--json` prints.

    Raises:
        ValueError: the config cannot run, with the remedy.
    """
    cfg = plain(config)
    resolved = OmegaConf.create(cfg)  # whose keys are not resolved once more
    settings = checked(resolved)
    on_cpus = lookup(cfg, "trainer.device") == "cpu" and cluster == THIS_MACHINE
    return {
        **explanation.level_facts(settings.asynchrony),
        "changes": [asdict(change) for change in changed(cfg)],
        "classes": {
            f"{workers.WORKERS_GROUP}.{name}": find(workers.WORKERS_GROUP, name).value
            for name in ("env", "inference")
        },
        "exactness": exactness(cfg, settings),
        "device": lookup(cfg, "trainer.device"),
        "placement": in_words(cfg),
        "adapters": asdict(settings.adapters) if settings.adapters else None,
        **explanation.run_facts(settings, why=_why_so_many(cfg, settings)),
        "memory": None if on_cpus else footprints(cfg, settings, gpu_memory=cluster.gpu_memory),
        "evaluation": _evaluation(cfg),
        "begins": beginning(resolved),
        "remarks": [*beyond(cfg, settings, cluster), *_remarks(cfg, settings)],
    }


def _why_so_many(cfg: Mapping[str, Any], settings: VerlSettings) -> str:
    """Where the number of shards comes from."""
    return explanation.why_so_many(
        section(cfg, "train"),
        settings.asynchrony.rollout,
        stages=whole(cfg, "env.stages", default=1),
        key="env.stages",
    )


def _evaluation(cfg: Mapping[str, Any]) -> str:
    if not evaluates(cfg):
        return "none"
    every = lookup(cfg, "trainer.test_freq") or -1
    when = [
        *(["before training"] if lookup(cfg, "trainer.val_before_train") else []),
        *([f"every {every} steps and after the last"] if every > 0 else []),
    ]
    return f"{lookup(cfg, 'env.eval.total_num_envs')} environments, {' and '.join(when)}"


def _remarks(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[str]:
    yield from without_effect(cfg)
    yield from other_words(cfg)
    yield from undecided(cfg)
    yield from unread_sections(cfg)
    mode, path = lookup(cfg, "trainer.resume_mode"), lookup(cfg, "trainer.resume_from_path")
    if path and mode != "resume_path":
        yield (
            f"trainer.resume_from_path={path} has no effect: trainer.resume_mode={mode}, resume_path reads it"
        )
    if not lookup(cfg, f"{ACTOR_SECTION}.shuffle") and settings.optimizer_steps > 1:
        yield (
            f"{ACTOR_SECTION}.shuffle=false, veRL's default, makes each optimizer step of the same "
            "environments; "
            f"{ACTOR_SECTION}.shuffle=true mixes them"
        )
    yield from explanation.remarks(settings, auto_reset=settings.auto_reset)


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
        *(memory_rows(facts["memory"]) if facts["memory"] else ()),
        *explanation.size_rows(facts),
        *explanation.listening_rows(facts),
    )
    explanation.show_rows(lines, facts["remarks"], console)


def _adapter_rows(facts: Mapping[str, Any]) -> Iterator[explanation.Row]:
    if adapters := facts["adapters"]:
        yield (
            "adapters",
            f"of rank {adapters['rank']} on {adapters['targets']}, trained alone with the value_head",
        )

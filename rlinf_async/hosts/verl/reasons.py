"""The reasons why veRL's trainer mode `vla_async` refuses a config, and the table of keys that they rest on.

The effects here of veRL's keys, and our own keys (`vla`, `env`, `async`), are rows of `keys.toml`. veRL
itself would find most of these faults in its processes, after Ray has started. It is imported, which takes
seconds, only if it alone can tell: for names that a user's package may have registered with it, for keys that
it checks and our table does not, and before a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import dotted, misspelt_key, nearest_key, shortened
from rlinf_async.extras import is_here
from rlinf_async.hosts.judge import presence
from rlinf_async.hosts.judge.reasons import Reason, override_reason, read_conflicts, unknown_reason
from rlinf_async.hosts.judge.table import UNCHECKED_KIND, UNSTATED_KIND, Table, read_rows
from rlinf_async.hosts.tasks import task_reasons
from rlinf_async.hosts.verl import algorithms
from rlinf_async.hosts.verl.checkpoint import why_no_checkpoint
from rlinf_async.hosts.verl.defaults import changes, default_of, defaults, is_known, usual
from rlinf_async.hosts.verl.installation import get_ready
from rlinf_async.hosts.verl.placement import placement_reasons
from rlinf_async.hosts.verl.settings import VerlSettings, process_count, section, size_reasons
from rlinf_async.hosts.verl.trials import trial_reasons
from rlinf_async.hosts.verl.view import ACTOR_SECTION, MODEL_SECTION, ROLLOUT_SECTION, VerlView

ENGINE_PREFIXES = ("actor_rollout_ref.", "trainer.")
"""The beginnings of keys that veRL's engine may read."""
CLASS_SUFFIX = "_target_"
"""The end of Hydra's keys that name a class or another callable."""
LOGGER_PACKAGES = {name: name for name in ("wandb", "swanlab", "mlflow", "clearml", "trackio")}
"""{logger of veRL: package that it needs}."""
ESTIMATOR_KEY = "algorithm.adv_estimator"
LOSS_KEY = f"{ACTOR_SECTION}.policy_loss.loss_mode"
CHECKPOINTS_KEY = "trainer.default_local_dir"
CPUS_KEY = "ray_kwargs.ray_init.num_cpus"
JUDGED_PREFIXES = (f"{ACTOR_SECTION}.", f"{ROLLOUT_SECTION}.log_prob_", f"{ROLLOUT_SECTION}.val_kwargs.")
"""The beginnings of keys that veRL's own check of a config reads."""

FILE = Path(__file__).with_name("keys.toml")
ROWS, _ = read_rows(
    FILE,
    {
        "trainer.use_v1": {"serves": lambda value: value is True},
        "critic.enable": {"serves": lambda value: value is False},
        f"{ACTOR_SECTION}.strategy": {"serves": lambda value: value == "fsdp2"},
        f"{ACTOR_SECTION}.policy_loss.loss_mode": {"serves": lambda value: value != "bypass_mode"},
        f"{MODEL_SECTION}.lora.rank": {"serves": lambda value: value is None or value <= 0},
        # The name of our model in veRL's keys, which our configs set.
        "without effect": {"serves": lambda value: value == "vla"},
    },
)
CONFLICTS = read_conflicts(
    FILE,
    {
        "COMPARING": algorithms.COMPARING_ESTIMATORS,
        "STREAMED": algorithms.VALUE_ESTIMATORS | algorithms.GROUP_ESTIMATORS,
        "VALUED": algorithms.VALUE_ESTIMATORS,
    },
)
TABLE = Table(ROWS, conflicts=CONFLICTS, default_of=default_of, knows_all_defaults=True)
"""Our own keys, and veRL's keys with an effect here."""


def value_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each value of `cfg` (plain data) that its key cannot have."""
    yield from TABLE.reasons(cfg, usual=usual(cfg))
    for key, value in changes(cfg):
        # veRL's check calls the class that such a key names, and so would `explain`.
        if key.startswith(ENGINE_PREFIXES) and CLASS_SUFFIX in f"{key}={value}":
            yield Reason(
                f"{key}={shortened(value)} is not served, only veRL's own class; remove it", f"~{key}"
            )


def key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each key of `cfg` (plain data) that is not served, or that no code reads."""
    yield from TABLE.refused_reasons(cfg, "trainer_mode vla_async")
    verl_keys = defaults()
    # If veRL is not installed its keys are unknown, and each of them would look like a mistake.
    if not verl_keys:
        return
    names = {*dotted(verl_keys), *TABLE.names}
    heeded = {name for name in names if (row := TABLE.find(name)) is None or row.fate != "without effect"}
    for key, value in dotted(cfg).items():
        section, row = key.partition(".")[0], TABLE.find(key)
        if value in (None, {}) or key in names or section not in {*verl_keys, "vla", "env"}:
            continue
        if key.rpartition(".")[0] in TABLE.names:
            continue  # a block in the place of a value: the reason of that value's kind names it
        near = misspelt_key(key, names)
        if row is None and not is_known(key, verl_keys):
            siblings = [name for name in names if name.startswith(f"{section}.")]
            near = TABLE.counterpart(key) or near or nearest_key(key, siblings)
        # A name in an open block may be another program's, unless it misspells a key with an effect.
        elif row is None or section not in verl_keys or row.kind is UNCHECKED_KIND or near not in heeded:
            continue
        hint = f"; did you mean {near}?" if near else "; remove it"
        yield Reason(f"neither veRL nor rlinf-async reads {key}={shortened(value)}{hint}", f"~{key}")


def setting_reasons(view: VerlView, asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for settings that do not go together."""
    yield from TABLE.conflict_reasons(view.cfg)
    yield from TABLE.conflict_reasons(view.cfg, asynchrony)
    yield from task_reasons(section(view, "train"), asynchrony)
    yield from trial_reasons(view)
    # A run would load parts of a checkpoint that its checkpoints do not have.
    load, save = presence.names_in(view.loaded_contents), presence.names_in(view.saved_contents)
    if missing := [name for name in load if name not in save]:
        yield override_reason(
            f"{ACTOR_SECTION}.checkpoint.load_contents={load} asks for {', '.join(missing)}, which "
            f"save_contents={save} leaves out",
            f"{ACTOR_SECTION}.checkpoint.load_contents=[{','.join(save)}]",
        )
    yield from placement_reasons(view)


def run_reasons(view: VerlView, settings: VerlSettings) -> Iterator[Reason]:
    """Yield a reason for each number of a run's `settings` that does not fit the others, or this machine."""
    yield from size_reasons(view, settings)
    loss, mode = view.loss, str(view.aggregation)
    if settings.streams and (override := algorithms.override_for(loss, mode)):
        yield override_reason(
            f"async.streamer does not support {LOSS_KEY}={loss} with loss_agg_mode={mode}: that loss is no "
            "mean over tokens, and its micro-batches do not add up to one",
            override,
        )
    places, processes = view.ray_cpus, process_count(settings.plan)
    if places is not None and places < processes and view.starts_ray:
        yield Reason(
            f"{CPUS_KEY}={places} has no place for each of {processes} processes: learner ranks, env workers "
            f"and inference ranks; set {CPUS_KEY}={processes}, which places processes and may be more than "
            "there are cores",
            f"{CPUS_KEY}={processes}",
        )


def presence_reasons(view: VerlView) -> Iterator[Reason]:
    """Yield the names that neither veRL, nor an entry point, nor this machine has."""
    sections = {"env.train": view.train, "env.eval": view.evaluation}
    yield from presence.environment_reasons(sections, {"vla": {"model": view.model}})
    estimators, losses = algorithms.ESTIMATOR_NAMES, algorithms.LOSS_NAMES
    for key, name, own, registry, description in (
        (ESTIMATOR_KEY, view.estimator, estimators, "ADV_ESTIMATOR_REGISTRY", "an estimator of veRL"),
        (LOSS_KEY, view.loss, losses, "POLICY_LOSS_REGISTRY", "a policy loss of veRL"),
    ):
        if name is not None and name not in own:
            get_ready()
            from verl.trainer.ppo import core_algos

            registered = getattr(core_algos, registry)
            names = sorted(str(getattr(each, "value", each)) for each in registered)
            if name not in names:
                yield unknown_reason(key, name, names, description)
    if isinstance(view.model, Mapping):
        yield from presence.model_reasons(view.model, key="vla.model")
    if view.lora_rank and not is_here("peft"):
        yield Reason(f"{MODEL_SECTION}.lora_rank needs the package peft; install it: pip install peft")
    yield from presence.package_reasons("trainer.logger", view.logger, LOGGER_PACKAGES, instead="[console]")
    if view.nodes == 1:  # other nodes have files of their own
        yield from presence.file_reasons(view.cfg, TABLE)
        saved = (CHECKPOINTS_KEY,) if view.save_interval not in (0, -1) else ()
        yield from presence.folder_reasons(view.cfg, TABLE, *saved)
        if view.resume_mode == "resume_path" and (why := why_no_checkpoint(view.resumed_path)):
            yield Reason(why, "trainer.resume_mode=disable")


def is_for_verl_to_judge(cfg: Mapping[str, Any]) -> bool:
    """Return True if `cfg` (plain data) sets a key that veRL checks and our table has no kind for.

    If the default of a key is a bool, both values are served.
    """
    defaults = usual(cfg)
    return any(
        key.startswith(JUDGED_PREFIXES)
        and value != defaults.get(key)
        and not isinstance(defaults.get(key), bool)
        for key, value in dotted(cfg).items()
        if (row := TABLE.find(key)) is None or (row.kind is UNSTATED_KIND and row.fate != "refused")
    )

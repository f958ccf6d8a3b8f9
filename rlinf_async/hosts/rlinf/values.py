"""The types that an RLinf knows, from its sources, and those of them that the tables here do not name.

What no table names is treated as unknown: a simulator is one shard, a model is not examined, and a loss, an
advantage or a level of ratios is refused, without a guess at another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from rlinf_async.hosts.rlinf.losses import (
    ADVANTAGE_TYPES,
    COMPARING_TYPES,
    ON_POLICY_LOSSES,
    OTHER_ADVANTAGES,
    OTHER_ALGORITHMS,
    RATIO_LEVELS,
)
from rlinf_async.hosts.rlinf.models import EVALUATED_MODELS, UNSERVED_MODELS, shared_chance
from rlinf_async.hosts.rlinf.sources import Sources
from rlinf_async.hosts.simulators import splitting

CONFIG_FILE = "config.py"
LOSS_FOLDERS = ("algorithms", "workers", "runners")
"""Folders of RLinf's package in whose files losses and advantages are registered, or asked for by name."""


@dataclass(frozen=True, kw_only=True)
class Values:
    """Names that an RLinf accepts as the values of keys of its config."""

    env_type: frozenset[str]
    model_type: frozenset[str]
    """Of models for its embodied runs."""
    loss_type: frozenset[str]
    adv_type: frozenset[str]
    logprob_type: frozenset[str]


def values_of(package: Path) -> Values:
    """The values of the RLinf whose package is in the folder `package`."""
    sources = Sources(package)
    files = [CONFIG_FILE, *_files(package)]

    def given_to(function: str) -> set[str]:
        return {name for file in files for name in sources.given_to(function, file)}

    compared = {name for file in files for name in sources.compared_with("loss_type", file)}
    return Values(
        env_type=frozenset(sources.values_of("rlinf.envs:SupportedEnvType").values()),
        model_type=frozenset(_embodied_models(sources)),
        loss_type=frozenset(given_to("register_policy_loss") | compared),
        adv_type=frozenset(given_to("register_advantage")),
        logprob_type=frozenset(sources.compared_with("logprob_type", "algorithms/utils.py")),
    )


def _files(package: Path) -> Iterator[str]:
    for folder in LOSS_FOLDERS:
        yield from (path.relative_to(package).as_posix() for path in sorted((package / folder).rglob("*.py")))


def _embodied_models(sources: Sources) -> set[str]:
    """Without the models of RLinf's other tasks, which have names in the same registry."""
    registered = sources.registered("SupportedModel", CONFIG_FILE)
    listed = sources.listed("EMBODIED_MODEL", CONFIG_FILE)
    return {registered[name] for name in listed if name in registered}


def _is_known_model(name: str) -> bool:
    tables = {*EVALUATED_MODELS, *UNSERVED_MODELS, "starvla"}  # which is known by its framework
    return name in tables or shared_chance({"actor": {"model": {"model_type": name}}}) is not None


KNOWN: dict[str, Callable[[str], bool]] = {
    "env_type": lambda name: splitting({"env_type": name}) != "unknown",
    "model_type": _is_known_model,
    "loss_type": {*ON_POLICY_LOSSES, *OTHER_ALGORITHMS}.__contains__,
    "adv_type": {*ADVANTAGE_TYPES, *COMPARING_TYPES, *OTHER_ADVANTAGES}.__contains__,
    "logprob_type": RATIO_LEVELS.__contains__,
}
"""Whether a table here names a value, for each field of `Values`."""
BECOMES = {
    "env_type": "one shard of each env worker's environments, as nobody has looked at",
    "model_type": "level 2 is not examined with",
    "loss_type": "refused are",
    "adv_type": "refused are",
    "logprob_type": "refused, as nobody has looked at them, are",
}
"""What becomes of values that no table names."""


def unknown_values(values: Values) -> dict[str, tuple[str, ...]]:
    """The values that no table here names, by their key."""
    unknown = {
        field.name: tuple(sorted(name for name in getattr(values, field.name) if not KNOWN[field.name](name)))
        for field in fields(values)
    }
    return {key: names for key, names in unknown.items() if names}

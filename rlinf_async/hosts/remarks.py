"""Remarks on a run that `explain` and `train` both say: on its settings, and on keys that nothing reads.

These keys are no word of a package's sources, are not read when a policy is built, or are misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.core.config_keys import clipped, misspelt, shortened
from rlinf_async.entry_points import ENVS_GROUP, OWN_PACKAGE, PREPARATIONS_GROUP, provided
from rlinf_async.hosts.kit.policy_size import parameters
from rlinf_async.hosts.simulators import USUAL_WORK_S
from rlinf_async.loops.run_settings import RunSettings


def remarks(settings: RunSettings, *, auto_reset: bool, has_values: bool = True) -> Iterator[str]:
    """Yield remarks on settings that the rows of the levels do not mention.

    `has_values` is False for a loss without values and ratios, which nothing could recompute.
    """
    asynchrony = settings.asynchrony
    if asynchrony.deterministic:
        yield (
            "async.deterministic: weights are published only after all rollouts that need the weights before "
            "have ended, which is slower; on a GPU the kernels must be deterministic, too"
        )
    if asynchrony.takes_tasks:
        yield (
            "a free simulator collects for the next place in the batch, tasks that took longest first, and a "
            "batch has as much of every task as in the synchronous loop (async.advanced.balance=tasks)"
        )
    if asynchrony.off_policy and has_values and not asynchrony.recomputes:
        yield "values and advantages are computed by the policies that sampled, and are not recomputed"
    elif asynchrony.off_policy and auto_reset:
        yield "values that bootstrap truncated episodes are the sampling policy's, and are not recomputed"
    if settings.shard_choices:
        shards = settings.plan.shards_per_worker
        yield (
            f"an env worker's Python takes some {USUAL_WORK_S * 1000:.0f} ms for a decision of a shard, so "
            f"that {shards} shards keep up with decisions that take {shards * USUAL_WORK_S:.2g} s or longer; "
            "the first steps measure both, and with shorter decisions the run goes on, after at most two "
            f"changes, with {in_words(sorted(settings.shard_choices, reverse=True))} shards and simulators "
            "built anew (async.advanced.fit_shards)"
        )
    elif asynchrony.advanced.fit_shards is True:
        yield (
            "async.advanced.fit_shards=true has no effect: it needs level 2, a process for each simulator, "
            "and a smaller number of shards that divides the present one"
        )
    if settings.plan.inference_ranks > settings.plan.shards:
        yield (
            f"{settings.plan.inference_ranks} inference ranks share {settings.plan.shards} shards and some "
            f"will idle: take {settings.plan.shards} ranks, or more shards if the simulators can be split"
        )


def in_words(numbers: Sequence[int]) -> str:
    """Return numbers as alternatives: `8, 4 or 2`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last


def own_sections(cfg: Mapping[str, Any], known: Collection[str], *, framework: str) -> Iterator[str]:
    """Yield a note for each section of `cfg` that is the user's own: neither `known` nor of a preparation."""
    brought = provided(PREPARATIONS_GROUP).names
    for name in cfg:
        if name not in known and name not in brought:
            near = misspelt(name, known)
            hint = f"; did you mean {near}?" if near else ""
            own = f"{clipped(str(name))} is a block of this config's own"
            yield f"{own}, which {framework} does not read{hint}"


WORD, REFERENCE = re.compile(r"\w+"), re.compile(r"\$\{[^}]*\}")
"""A word; and a reference of one key to another, as `${env.seed}`."""


def words_of_references(unresolved: object) -> frozenset[str]:
    """Return every word of the references in a config with its interpolations: keys that others stand for."""
    return frozenset(word for text in REFERENCE.findall(str(unresolved)) for word in WORD.findall(text))


@cache
def words_of_module(name: str) -> frozenset[str]:
    """Return every word of the sources of a module and of the package that it is in; nothing is imported."""
    spec = find_spec(name.partition(".")[0]) if name else None
    if spec is None:
        return frozenset()
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    if not folders and spec.origin is not None and spec.origin.endswith(".py"):
        files = [Path(spec.origin)]
    return words_of(files)


def words_of(files: Iterable[Path]) -> frozenset[str]:
    """Return every word of these files."""
    return frozenset().union(*(WORD.findall(file.read_text(errors="replace")) for file in files))


CHOOSING_KEYS = frozenset({"model_type", "model_path"})
"""Keys that choose a policy, on every host."""


class NotedSection(DictConfig):
    """A section that notes which of its keys are read; whatever goes through all of them reads all."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(dict(content))
        self.__dict__["_read"] = set()  # DictConfig takes other attributes for keys

    @property
    def unread(self) -> list[str]:
        """The keys that were not read, in their order."""
        return [str(key) for key in self.__dict__["_content"] if key not in self.__dict__["_read"]]

    def keys(self) -> Any:
        self._note_all()
        return super().keys()

    def __deepcopy__(self, memo: dict[int, Any]) -> DictConfig:
        self._note_all()
        return DictConfig(OmegaConf.to_container(self))

    def copy(self) -> DictConfig:
        return self.__deepcopy__({})

    def _get_node(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__.get("_read", set()).add(key)
        return super()._get_node(key, *args, **kwargs)

    def _note_all(self) -> None:
        if "_read" in self.__dict__:
            self.__dict__["_read"].update(self.__dict__["_content"])


def unread_keys(section: Mapping[str, Any], *, key: str, own: Collection[str] = ()) -> Iterator[str]:
    """Yield a remark for each key of a valid block at `key` that building its policy does not read.

    A policy with a checkpoint is not built before the run: nothing is said of its keys.

    Args:
        own: further keys of the block, which the host reads.
    """
    read = {*CHOOSING_KEYS, *own}
    if section.get("model_path") or not section.keys() - read:
        return
    noted = NotedSection(section)
    with suppress(ImportError, ValueError):
        parameters(noted, key=key)
        for name in noted.unread:
            if name not in read:
                setting = f"{key}.{name}={shortened(section[name])}"
                yield f"{setting} is not read when {section['model_type']} is built"


def misspelt_env_keys(
    section: Mapping[str, Any], *, key: str, own: Collection[str], unresolved: Any
) -> Iterator[str]:
    """Yield a remark for each key of the block at `key` that is no word of the sources of its environments'
    package, and nearly one.

    Other keys that are no word may be meant for a package that gets the whole section.

    Args:
        own: the keys that the host reads; a misspelt one has an effect nowhere.
        unresolved: the config with its interpolations, which may refer to a key.
    """
    entries = provided(ENVS_GROUP).select(name=str(section.get("env_class")))
    foreign = [entry for entry in entries if entry.dist is None or entry.dist.name != OWN_PACKAGE]
    modules = sorted({entry.module for entry in foreign})
    # Environments of this package check their keys themselves, or need only those of the host.
    known = (
        frozenset(own).union(*map(words_of_module, modules)) if section.keys() - {*own} else frozenset(own)
    )
    named = words_of_references(unresolved)
    for name, value in section.items():
        if value is not None and name not in known | named and (near := misspelt(name, known)):
            reader = modules[0].partition(".")[0] if modules else str(section.get("env_class"))
            yield f"nothing in {reader} reads {key}.{name}={shortened(value)}; did you mean {key}.{near}?"

"""Keys of a config that nothing reads: those that are no word of a package's sources, those that building a
policy does not read, and misspelt keys of environments.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.core.config_keys import misspelt, shortened
from rlinf_async.entry_points import ENVS_GROUP, OWN_PACKAGE, provided
from rlinf_async.hosts.kit.policy_size import parameters

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

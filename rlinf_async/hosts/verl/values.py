"""The values of a config beside veRL's defaults, which say what there is and of which kind it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from rlinf_async.core.nested import dotted
from rlinf_async.hosts.kit.kinds import Anything, Block, Flag, Kind, Listed, Real, Text


@cache
def defaults() -> Mapping[str, Any]:
    """veRL's own config with its defaults; empty where veRL is not here. veRL is not imported."""
    verl = find_spec("verl")
    for folder in (verl.submodule_search_locations or ()) if verl else ():
        path = Path(folder, "trainer", "config", "_generated_ppo_trainer.yaml")
        if path.is_file():
            content: Mapping[str, Any] = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
            return content
    return {}


def changes(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of `cfg` (plain data) whose values are not veRL's defaults, with those; null is nobody's."""
    raw = dotted(defaults())
    pointing: Any = None
    for key, value in dotted(cfg).items():
        if value in (None, {}) or value == raw.get(key) or value == resolved_defaults().get(key):
            continue
        pointing = OmegaConf.create(dict(cfg)) if pointing is None else pointing
        if value != _pointed_to(key, pointing, raw):
            yield key, value


def is_switch(key: str) -> bool:
    """Whether veRL's default of a key is true or false."""
    return isinstance(resolved_defaults().get(key), bool)


def kind_of_default(key: str) -> Kind | None:
    """What a value of the kind of veRL's default is; None where there is no default, or it is null."""
    default = resolved_defaults().get(key)
    if is_switch(key):
        return Flag()
    if isinstance(default, int | float):
        return Real()
    if isinstance(default, list):
        return Listed(Anything())
    return Text() if isinstance(default, str) else Block() if isinstance(default, Mapping) else None


@cache
def resolved_defaults() -> Mapping[str, Any]:
    """veRL's defaults by dotted keys, of which some point to others, where nobody sets anything."""
    content: Any = OmegaConf.to_container(OmegaConf.create(dict(defaults())), resolve=True)
    return dotted(content)


def _pointed_to(key: str, pointing: Any, raw: Mapping[str, Any]) -> Any:
    """What a default that points to another key, or lies in one, comes to; written into `pointing`."""
    names = key.split(".")
    for depth in range(len(names), 0, -1):
        place = ".".join(names[:depth])
        if isinstance(raw.get(place), str) and "${" in raw[place]:
            OmegaConf.update(pointing, place, raw[place])
            return OmegaConf.select(pointing, key, throw_on_resolution_failure=False)
    return None

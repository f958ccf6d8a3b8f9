"""Which runs a sweep consists of; everything that can be refused is refused here, before any starts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlinf_async.config import LEVELS
from rlinf_async.sweep.cell import Cell
from rlinf_async.sweep.home import Home
from rlinf_async.sweep.settings import Setting, parse_settings
from rlinf_async.sweep.workload import Workload

OWN = {
    "async": "--modes",
    "async.mode": "--modes",
    **{f"async.{level}.enabled": "--modes" for level in LEVELS},
    "runner.logger.log_path": "--output",
    "actor.seed": "--seeds",
}
"""Keys that a sweep sets by itself, and the option by which it is told how."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs in the order in which they are to happen, and the directory that holds them."""

    home: Home
    settings: tuple[Setting, ...]
    seeds: int
    cells: tuple[Cell, ...]

    def cells_of(self, setting: Setting) -> list[Cell]:
        return [cell for cell in self.cells if cell.setting == setting]


def plan(
    cfg: DictConfig,
    *,
    config_name: str,
    config_dir: Path | None,
    overrides: Sequence[str],
    modes: str,
    seeds: int,
    output: Path | None,
) -> Sweep:
    """The sweep of a config, which `cfg` is with `overrides`; every setting is run before a seed is added.

    Raises:
        ValueError: an unknown setting, one that the config cannot run, no seed, an override of something
            that the sweep sets, or a directory that is not free.
    """
    settings = parse_settings(modes)
    if seeds < 1:
        raise ValueError(f"--seeds={seeds} must be at least 1")
    _refuse_own(overrides)
    workload = Workload.read(cfg)
    for setting in settings:
        _check_setting(setting, config_name, config_dir, overrides)
    place = None if config_dir is None else str(config_dir.resolve())
    identity = {"config_name": config_name, "config_dir": place, "overrides": list(overrides)}
    home = Home(output or Path("sweeps") / config_name, identity)
    home.check()
    source = ("--config-name", config_name, *(() if place is None else ("--config-dir", place)))
    digest = hashlib.sha256(OmegaConf.to_yaml(cfg, sort_keys=True).encode()).hexdigest()
    cells = tuple(
        Cell(
            setting=setting,
            seed=seed,
            source=source,
            overrides=(*overrides, *workload.logged, *setting.overrides, *workload.seeded(seed)),
            config=digest,
            workload=workload,
            sweep=home.path,
        )
        for seed in range(seeds)
        for setting in settings
    )
    return Sweep(home=home, settings=settings, seeds=seeds, cells=cells)


def _refuse_own(overrides: Sequence[str]) -> None:
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        option = OWN.get(override.key_or_group)
        if option is not None:
            raise ValueError(
                f"the override {override.input_line} is for the sweep to set; leave it out, and see {option}"
            )


def _check_setting(setting: Setting, name: str, directory: Path | None, overrides: Sequence[str]) -> None:
    from rlinf_async.hosts.rlinf.compose import compose_config
    from rlinf_async.hosts.rlinf.explain import explain

    try:
        explain(compose_config(name, [*overrides, *setting.overrides], directory))
    except (ValueError, OmegaConfBaseException) as error:
        raise ValueError(f"the setting {setting.name} cannot run: {error}") from error

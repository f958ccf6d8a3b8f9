"""The runs of a sweep; every refusal is made here, before any run starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlinf_async.compose import compose_config
from rlinf_async.config import LEVEL_NAMES
from rlinf_async.hosts.host import Workload, host_of
from rlinf_async.lab.sweep.cell import SweepCell
from rlinf_async.lab.sweep.settings import Setting, parse_axis, parse_settings, varied
from rlinf_async.lab.sweep.steps import DEFAULT_GOAL
from rlinf_async.lab.sweep.sweep_dir import SweepDirectory

SWEEP_KEYS = {
    "async": "--modes",
    "async.mode": "--modes",
    **{f"async.{one}.enabled": "--modes" for one in LEVEL_NAMES},
}
"""Keys that a sweep sets by itself under any host, and its option for each."""
SEED_STRIDE = 1000
"""The distance of the seeds of two runs: workers add their rank to the seed, so neighbours would overlap."""
LEAST_STEPS = 2
"""The fewest steps that can be compared: the first is not measured."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs in the order in which they are to happen, and the directory that holds them."""

    directory: SweepDirectory
    settings: tuple[Setting, ...]
    seeds: int
    cells: tuple[SweepCell, ...]
    off: str
    """The runner that runs while all levels are off, in a sentence."""
    goal: float = DEFAULT_GOAL
    """The success rate whose time is measured."""
    steps: int = 0
    """Steps of a run; 0 if unknown."""

    def cells_of(self, setting: Setting) -> list[SweepCell]:
        return [cell for cell in self.cells if cell.setting == setting]


def plan(
    cfg: DictConfig,
    *,
    config_name: str,
    config_dir: Path | None,
    overrides: Sequence[str],
    modes: str | None,
    seeds: int,
    output: Path | None,
    vary: Sequence[str] | None = None,
    success: float = DEFAULT_GOAL,
) -> Sweep:
    """The sweep of a config, which `cfg` is with `overrides`; every setting is run before a seed is added.

    `vary` are keys and values as `parse_axis` reads them. Without `modes` they are tried in `full`, with
    `off` for comparison, and without them there is the ladder.

    Raises:
        ValueError: an unknown setting, one that the config cannot run, no seed, an override of something
            that the sweep sets, or a directory that is not free.
    """
    axes = [parse_axis(text) for text in vary or ()]
    settings = varied(parse_settings(modes or ("off,full" if axes else "ladder")), axes)
    _check_numbers(seeds, success)
    workload = host_of(cfg).workload(cfg)
    own = {**SWEEP_KEYS, workload.run_dir: "--output", next(iter(workload.seeds)): "--seeds"}
    _refuse_own([*overrides, *(f"{key}=1" for key, _ in axes)], own)
    _check_steps(workload)
    for setting in settings:
        _check_setting(setting, config_name, config_dir, overrides)
    config_path = None if config_dir is None else str(config_dir.resolve())
    identity = {"config_name": config_name, "config_dir": config_path, "overrides": list(overrides)}
    directory = SweepDirectory(output or Path("sweeps") / config_name, identity)
    directory.check()
    source = ("--config-name", config_name, *(() if config_path is None else ("--config-dir", config_path)))
    digest = hashlib.sha256(OmegaConf.to_yaml(cfg, sort_keys=True).encode()).hexdigest()
    cells = tuple(
        SweepCell(
            setting=setting,
            seed=seed,
            source=source,
            overrides=(*overrides, *workload.overrides, *setting.overrides, *seeded(workload, seed)),
            config=digest,
            workload=workload,
            sweep=directory.path,
            goal=success,
        )
        for seed in range(seeds)
        for setting in settings
    )
    return Sweep(
        directory=directory,
        settings=settings,
        seeds=seeds,
        cells=cells,
        off=workload.off,
        goal=success,
        steps=workload.steps[1],
    )


def seeded(workload: Workload, seed: int) -> tuple[str, ...]:
    """The overrides of run number `seed`; number 0 has the config's own seeds."""
    return tuple(f"{key}={first + seed * SEED_STRIDE}" for key, first in workload.seeds.items())


def _check_numbers(seeds: int, success: float) -> None:
    if seeds < 1:
        raise ValueError(f"--seeds={seeds} must be at least 1")
    if not 0 < success <= 1:
        raise ValueError(f"--success={success:g} must be above 0 and at most 1, as in 0.8 for 80 %")


def _check_steps(workload: Workload) -> None:
    key, steps = workload.steps
    if steps < LEAST_STEPS:
        raise ValueError(
            f"{key}={steps} leaves nothing to measure, because a run's first step is left out; "
            f"nearest: {LEAST_STEPS}"
        )


def _refuse_own(overrides: Sequence[str], own: Mapping[str, str]) -> None:
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        option = own.get(override.key_or_group)
        if option is not None:
            raise ValueError(
                f"the override {override.input_line} is for the sweep to set; leave it out, and see {option}"
            )


def _check_setting(setting: Setting, name: str, directory: Path | None, overrides: Sequence[str]) -> None:
    try:
        cfg = compose_config(name, [*overrides, *setting.overrides], directory)
        host_of(cfg).explain(cfg)
    except (ValueError, OmegaConfBaseException, HydraException) as error:
        text = " ".join(str(error).split()) if isinstance(error, HydraException) else error
        raise ValueError(f"the setting {setting.name} cannot run: {text}") from error

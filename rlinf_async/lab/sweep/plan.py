"""The runs of a sweep and their directory; all checks are made here, before the first run."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlinf_async.compose import compose_config, unresolved
from rlinf_async.config import LEVEL_NAMES
from rlinf_async.config_errors import sentence
from rlinf_async.core.config_keys import clipped, dotted
from rlinf_async.hosts.host import Workload, host_of
from rlinf_async.hosts.judge.reasons import RefusedError
from rlinf_async.lab.sweep.cell import SweepCell
from rlinf_async.lab.sweep.settings import Axis, Setting, parse_axis, parse_settings, varied
from rlinf_async.lab.sweep.steps import DEFAULT_GOAL
from rlinf_async.observe.files import make_directory, open_regular
from rlinf_async.observe.read_files import MAX_JSON_BYTES, DamagedError, read_json, read_regular

IDENTITY_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepDirectory:
    """The directory of a sweep's runs; `identity` identifies the sweep."""

    path: Path
    identity: Mapping[str, Any]

    def check(self) -> None:
        """Check, without a change, that this sweep can have the directory.

        Raises:
            ValueError: the path is a file, or a directory of another sweep or with other content.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; choose a directory by --output")
        record = self.path / IDENTITY_FILE
        if (other := self._read(record)) is not None:
            self._compare(other)
        elif self.path.exists() and any(path != record for path in self.path.iterdir()):
            raise ValueError(
                f"{self.path} holds something that is no sweep; choose another --output, or an empty one"
            )

    def _read(self, record: Path) -> Mapping[str, Any] | None:
        """Return the identity of the sweep in the directory; None without one, or with a truncated file."""
        try:
            text = read_regular(record, limit=MAX_JSON_BYTES).decode(errors="replace")
            content = read_json(text) if text else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"{record} cannot be read: {error.strerror}; choose another --output") from error
        except DamagedError as error:
            raise ValueError(f"{record} {error}; choose another --output") from error
        if content is not None and not isinstance(content, dict):
            raise ValueError(f"{record} says of no sweep which it is; choose another --output")
        return content

    def _compare(self, other: Mapping[str, Any]) -> None:
        for key, value in self.identity.items():
            if other.get(key) != value:
                raise ValueError(
                    f"{self.path} holds another sweep, with {key}={other.get(key)!r} instead of {value!r}; "
                    "choose another --output"
                )

    def _open_record(self) -> int:
        record = self.path / IDENTITY_FILE
        try:
            return open_regular(record, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(
                f"{record} cannot be written: {error.strerror}; choose another --output"
            ) from error

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Take the directory for this sweep, and lock it against other processes during the block.

        Raises:
            ValueError: another process has locked it.
        """
        self.check()
        make_directory(self.path, private=False)
        with os.fdopen(self._open_record(), "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"another process is running the sweep in {self.path}") from error
            if not file.tell():
                file.write(json.dumps(self.identity, indent=2) + "\n")
                file.flush()
            yield


SWEEP_KEYS = {
    "async": "--modes",
    "async.mode": "--modes",
    **{f"async.{one}.enabled": "--modes" for one in LEVEL_NAMES},
}
"""Keys that a sweep sets itself under every host, with its option for each."""
SEED_STRIDE = 1000
"""Distance between the seeds of two runs: workers add their rank to the seed, so close seeds overlap."""
MOST_RUNS = 1000
"""Most runs of a sweep: all settings are checked before the first run, each in half a second or more."""
LEAST_STEPS = 2
"""Fewest steps of a comparable run: the first step is not measured."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The runs of a sweep in their order, and their directory."""

    directory: SweepDirectory
    settings: tuple[Setting, ...]
    seeds: int
    cells: tuple[SweepCell, ...]
    off: str
    """A sentence about the runner that runs with all levels off."""
    goal: float = DEFAULT_GOAL
    """Success rate for the measures of time and environment steps to success."""
    steps: int = 0
    """Steps of a run; 0 if unknown."""
    absent: tuple[str, ...] = ()
    """Sentences on what the runs need and this machine has not; a sweep of another machine can be planned."""

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
    """Plan the sweep of a config, `cfg` with `overrides`; all settings run with one seed before the next.

    `vary` has keys and values for `parse_axis`. Without `modes` they run in `full`, with `off` to compare;
    without both, the ladder runs.

    Raises:
        ValueError: an unknown setting, a setting that the config cannot run, no seed, an override of a key
            that the sweep sets, or a directory that is not free.
    """
    axes = [parse_axis(text) for text in vary or ()]
    named = parse_settings(("off,full" if axes else "ladder") if modes is None else modes)
    _check_numbers(named, axes, seeds, success)
    _check_values(axes)
    settings = varied(named, axes)
    workload = host_of(cfg).workload(cfg)
    _refuse_own(overrides, axes, workload)
    _check_steps(workload)
    absent = _check_settings(settings, config_name, config_dir, overrides)
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
            overrides=(*overrides, *workload.overrides, *setting.overrides, *seed_overrides(workload, seed)),
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
        absent=absent,
    )


def seed_overrides(workload: Workload, seed: int) -> tuple[str, ...]:
    """Return the overrides of run number `seed`; number 0 has the config's own seeds."""
    return tuple(f"{key}={first + seed * SEED_STRIDE}" for key, first in workload.seeds.items())


def _check_values(axes: Sequence[Axis]) -> None:
    """Check that Hydra can read every value, and finds one value in it."""
    for key, values in axes:
        for value in values:
            try:
                override = OverridesParser.create().parse_override(f"{key}={value}")
            except HydraException as error:
                raise ValueError(
                    f"--vary {clipped(f'{key}={value}')} cannot be read; close every bracket and quote, "
                    "and put a text with unusual signs into quotes of its own, as in --vary \"KEY='a;b'\""
                ) from error
            if override.is_sweep_override():
                raise ValueError(
                    f"--vary {clipped(f'{key}={value}')} stands for several values; write them out, as in "
                    f"--vary {key}=A,B"
                )


def _check_numbers(settings: Sequence[Setting], axes: Sequence[Axis], seeds: int, success: float) -> None:
    if seeds < 1:
        raise ValueError(f"--seeds={seeds} must be at least 1")
    runs = len(settings) * math.prod(len(values) for _, values in axes) * seeds
    if runs > MOST_RUNS:
        raise ValueError(
            f"this sweep has {runs:,} runs, and {MOST_RUNS:,} are the most; give fewer values or seeds, or "
            "divide it into several sweeps"
        )
    if not 0 < success <= 1:
        raise ValueError(f"--success={success:g} must be above 0 and at most 1, as in 0.8 for 80 %")


def _check_steps(workload: Workload) -> None:
    key, steps = workload.steps
    if steps < LEAST_STEPS:
        raise ValueError(
            f"{key}={steps} leaves nothing to measure, because a run's first step is left out; "
            f"nearest: {LEAST_STEPS}"
        )


def _refuse_own(overrides: Sequence[str], axes: Sequence[Axis], workload: Workload) -> None:
    own = {**SWEEP_KEYS, workload.run_dir: "--output", next(iter(workload.seeds)): "--seeds"}
    for key, _ in axes:
        bare = key.lstrip("+")
        if bare in own:
            raise ValueError(f"--vary {bare} is for the sweep to set; leave it out, and see {own[bare]}")
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        option = own.get(override.key_or_group)
        if option is not None:
            raise ValueError(
                f"the override {override.input_line} is for the sweep to set; leave it out, and see {option}"
            )


def _check_settings(
    settings: Sequence[Setting], name: str, directory: Path | None, overrides: Sequence[str]
) -> tuple[str, ...]:
    """Check every setting; return sentences on what this machine lacks.

    Raises:
        ValueError: some cannot run; the message has every reason once, with the settings that it stops.
    """
    refused: dict[str, list[str]] = {}
    absent: dict[str, list[str]] = {}
    for setting in settings:
        try:
            cfg = compose_config(name, [*overrides, *setting.overrides], directory)
            host = host_of(cfg)
            host.explain(cfg)
            for reason in host.absent(cfg):
                absent.setdefault(reason, []).append(setting.name)
        except (ValueError, OmegaConfBaseException, HydraException) as error:
            for text in _reasons(
                error, setting, lambda: dotted(unresolved(compose_config(name, overrides, directory)))
            ):
                refused.setdefault(text, []).append(setting.name)
    if refused:
        raise ValueError("\n".join(_sentence(of, "cannot run", why) for why, of in refused.items()))
    return tuple(_sentence(of, "cannot run on this machine", why) for why, of in absent.items())


def _reasons(error: Exception, setting: Setting, known_keys: Callable[[], Mapping[str, Any]]) -> list[str]:
    if isinstance(error, RefusedError):
        return [reason.text for reason in error.reasons]
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        # The config alone can be composed, so it is an override of the setting that does not fit.
        return [sentence(error, "", overrides=setting.overrides, known_configs=(), known_keys=known_keys)]
    return [str(error)]


def _sentence(settings: Sequence[str], verb: str, reason: str) -> str:
    noun = "setting" if len(settings) == 1 else "settings"
    return f"the {noun} {', '.join(settings)} {verb}: {reason}"

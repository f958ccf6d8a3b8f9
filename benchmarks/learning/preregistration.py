"""The preregistered experiment of `preregistration.yaml`, and its runs in the order of that file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from benchmarks.learning import cells

STATED_FILE = Path(__file__).with_name("preregistration.yaml")

OPTIMIZER_STEPS = 4
"""Optimizer steps in one pass over a batch."""

Side = Literal["synchronous", "asynchronous"]
SIDE_NAMES: tuple[Side, Side] = ("synchronous", "asynchronous")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The training settings of a run on the local host."""

    algorithm: Literal["ppo", "grpo"]
    update_epoch: int
    lr: float
    batches: int
    group_size: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """The environments of a run on the local host, with equal numbers of each difficulty."""

    kind: Literal["points", "tokens", "metaworld"]
    difficulties: tuple[Any, ...]
    envs: int
    shards: int
    horizon: int
    hidden: int
    start: tuple[float, float] | None
    """Bounds of the starting policy's success; None for a policy with random parameters."""

    def of_env(self, env: int) -> int:
        """Return the number of the task of environment `env`."""
        return env * len(self.difficulties) // self.envs


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of the experiment, a row of its table."""

    name: str
    host: Literal["local", "rlinf"]
    task: str
    algorithm: Literal["ppo", "grpo"]
    seeds: tuple[int, ...]
    lag: int
    """`max_staleness`; also the intended mean lag, unless `mean_lag` is given."""
    mean_lag: float | None = None
    recipe: str | None = None
    balance: str = "exact"
    training_share: float | None = None
    """Training time of one epoch on the virtual clock, in rollouts; None for that of the service times."""
    streamer: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keys of level 3 that differ from the plain settings of the local host."""
    proximal: str | None = None
    """The anchor of level 1; None for the recomputed one."""
    correction: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The correction of a setting with level 1 alone at a fixed lag; empty for a setting with all levels."""
    given: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The entry of an RLinf setting in the file, unchanged."""

    @property
    def in_order_of_arrival(self) -> bool:
        """True if optimizer steps take pieces in the order of arrival, as the local host once did."""
        streams = self.host == "local" and self.streamer.get("enabled", True) and not self.correction
        return streams and self.streamer.get("steps") != "spread"

    @property
    def lag_to_have(self) -> float:
        """The intended mean number of policy versions between an action and its training."""
        return self.lag if self.mean_lag is None else self.mean_lag

    @property
    def synchronous(self) -> str:
        """The name of the setting's synchronous runs; settings of the same task and recipe share them."""
        return f"sync-{self.task}-{self.recipe}" if self.host == "local" else f"sync-{self.name}"

    def path(self, side: Side, seed: int) -> Path:
        """Return the path of a run's result."""
        name = self.name if side == "asynchronous" else self.synchronous
        return cells.RESULTS_FOLDER / "preregistered" / f"{name}-seed{seed}.json"

    def result(self, side: Side, seed: int) -> dict[str, Any] | None:
        """Return the result of a run; None if there is none."""
        path = self.path(side, seed)
        return json.loads(path.read_text()) if path.exists() else None

    def success(self, side: Side, seeds: Iterable[int]) -> dict[int, list[float]]:
        """Return the success curves of the runs with a result, by seed."""
        results = {seed: self.result(side, seed) for seed in seeds}
        return {seed: result["success"] for seed, result in results.items() if result is not None}


class Run(NamedTuple):
    """One run of a setting."""

    setting: Setting
    side: Side
    seed: int

    @property
    def name(self) -> str:
        return f"{self.setting.name} {self.side} {self.seed}"

    def run(self) -> None:
        """Train, and write the result."""
        # Imported here: both modules import this one.
        if self.setting.host == "local":
            from benchmarks.learning.preregistered_run import run
        else:
            from benchmarks.learning.on_ray import run_setting as run
        run(*self)


def missing(settings: Iterable[Setting]) -> list[Run]:
    """Return the runs of `settings` without a result, pair by pair."""
    runs: dict[Path, Run] = {}
    for setting in settings:
        for seed in setting.seeds:
            for side in SIDE_NAMES:
                path = setting.path(side, seed)
                if not path.exists():
                    runs.setdefault(path, Run(setting, side, seed))
    return list(runs.values())


@dataclass(frozen=True, kw_only=True)
class Preregistration:
    """The content of preregistration.yaml."""

    settings: tuple[Setting, ...]
    tasks: Mapping[str, Task]
    recipes: Mapping[str, Recipe]
    service_times: Mapping[str, Any]
    statistic: Mapping[str, Any]
    validity: Mapping[str, Any]
    sentences: Mapping[str, str]
    pilots: tuple[str, ...]
    amendments: tuple[str, ...]
    corrections: Mapping[str, Any]
    anchors: Mapping[str, Any]
    peers: Mapping[str, Any]
    verl: Mapping[str, Any]

    def setting(self, name: str) -> Setting:
        """Return the setting of this name."""
        return next(setting for setting in self.settings if setting.name == name)

    @property
    def prefixes(self) -> list[str]:
        """The prefixes of the names of correction settings: one for each policy, and one for the other
        recipe.
        """
        policies = [policy["prefix"] for policy in self.corrections["policies"].values()]
        return list(dict.fromkeys([*policies, *self.anchors["recipes"]]))

    def streamed_share(self, setting: Setting) -> float:
        """Return the intended share of samples that `setting` streams.

        All pieces of a batch but the last are streamed; with `steps: spread`, only in the first optimizer
        step.
        """
        if not setting.streamer.get("enabled", True):
            return 0.0
        local = setting.host == "local"
        shards = self.tasks[setting.task].shards if local else setting.given["shards"]
        at_once = 1 / OPTIMIZER_STEPS if setting.streamer.get("steps") == "spread" else 1.0
        return float(1 - 1 / shards) * at_once

    def record(self, setting: Setting, side: Side, seed: int) -> dict[str, Any]:
        """Describe a run for its result file; a result counts only while its description matches the file."""
        described: dict[str, Any] = {"side": side, "seed": seed, "host": setting.host, "task": setting.task}
        if setting.host == "local":
            task, recipe = self.tasks[setting.task], self.recipes[setting.recipe or ""]
            described |= {"of": asdict(task), "recipe": asdict(recipe)}
        else:
            described |= {"given": dict(setting.given)}
        if side == "asynchronous":
            described |= {"lag": setting.lag, "balance": setting.balance}
            if setting.mean_lag is not None:
                described |= {"mean_lag": setting.mean_lag}
            if setting.training_share is not None:
                described |= {"training_share": setting.training_share}
            if setting.streamer:
                described |= {"streamer": dict(setting.streamer)}
            if setting.proximal is not None:
                described |= {"proximal": setting.proximal}
            if setting.correction:
                described |= {"correction": dict(setting.correction)}
            if setting.host == "local":
                described |= {"service_times": dict(self.service_times)}
        return described


@cache
def load(path: Path = STATED_FILE) -> Preregistration:
    """Read the file.

    Raises:
        ValueError: a setting names an unknown task or recipe, or two settings share a name.
    """
    stated = yaml.safe_load(path.read_text())
    tasks = {name: _task(task) for name, task in stated["tasks"].items()}
    recipes = {name: Recipe(**recipe) for name, recipe in stated["recipes"].items()}
    settings = [_local(one, stated, recipes) for one in stated["local"]]
    settings += [_rlinf(one, stated) for one in stated["rlinf"]]
    for setting in settings:
        if setting.host == "local" and setting.task not in tasks:
            raise ValueError(f"setting {setting.name}: no task {setting.task!r} among {', '.join(tasks)}")
    names = [setting.name for setting in settings]
    if len(set(names)) != len(names):
        raise ValueError(f"settings share a name: {', '.join(names)}")
    copied = (
        "service_times",
        "statistic",
        "validity",
        "sentences",
        "corrections",
        "anchors",
        "peers",
        "verl",
    )
    return Preregistration(
        settings=tuple(settings),
        tasks=tasks,
        recipes=recipes,
        pilots=tuple(stated["pilots"]),
        amendments=tuple(stated["amendments"]),
        **{name: stated[name] for name in copied},
    )


def _task(stated: Mapping[str, Any]) -> Task:
    start = None if stated["start"] is None else tuple(stated["start"])
    return Task(**{**stated, "difficulties": tuple(stated["difficulties"]), "start": start})


def _local(one: Mapping[str, Any], stated: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> Setting:
    if one["recipe"] not in recipes:
        raise ValueError(f"setting {one['name']}: no recipe {one['recipe']!r} among {', '.join(recipes)}")
    seeds, algorithm = tuple(stated["seeds"]["local"]), recipes[one["recipe"]].algorithm
    return Setting(host="local", algorithm=algorithm, seeds=seeds, **one)


def _rlinf(one: Mapping[str, Any], stated: Mapping[str, Any]) -> Setting:
    return Setting(
        host="rlinf",
        name=one["name"],
        task=one["task"],
        algorithm=one["algorithm"],
        seeds=tuple(one.get("seeds", stated["seeds"]["rlinf"])),
        lag=1,
        streamer={"steps": "spread"},
        given=dict(one),
    )

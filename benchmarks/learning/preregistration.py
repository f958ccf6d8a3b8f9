"""The preregistered experiment, as `preregistration.yaml` states it, and its runs in that order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from benchmarks.learning import cells

FILE = Path(__file__).with_name("preregistration.yaml")

STEPS = 4
"""Optimizer steps in one pass over a batch."""

Side = Literal["synchronous", "asynchronous"]
SIDES: tuple[Side, Side] = ("synchronous", "asynchronous")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a run of the local host trains."""

    algorithm: Literal["ppo", "grpo"]
    update_epoch: int
    lr: float
    batches: int
    group_size: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a run of the local host trains on: as many environments of each difficulty."""

    kind: Literal["points", "tokens", "metaworld"]
    difficulties: tuple[Any, ...]
    envs: int
    shards: int
    horizon: int
    hidden: int
    start: tuple[float, float] | None
    """The success of the policy that it starts from; None: a fresh one."""

    def of_env(self, env: int) -> int:
        """The number of the task that environment `env` has."""
        return env * len(self.difficulties) // self.envs


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    host: Literal["local", "rlinf"]
    task: str
    algorithm: Literal["ppo", "grpo"]
    seeds: tuple[int, ...]
    lag: int
    """`max_staleness`; the mean lag that the setting is to have, unless `mean_lag` says another."""
    mean_lag: float | None = None
    recipe: str | None = None
    balance: str = "exact"
    training_share: float | None = None
    """Of one epoch on the virtual clock, where it is not that of the service times."""
    streamer: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keys of level 3, where they are not those of the plain settings of the local host."""
    proximal: str | None = None
    """The anchor of level 1, where it is not recomputed."""
    correction: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of level 1 alone at a fixed lag, in the place of all levels."""
    given: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the file says of a setting of RLinf, word for word."""

    @property
    def in_order_of_arrival(self) -> bool:
        """Whether optimizer steps are cut in order of arrival, as settings of the local host once were."""
        streams = self.host == "local" and self.streamer.get("enabled", True) and not self.correction
        return streams and self.streamer.get("steps") != "spread"

    @property
    def lag_to_have(self) -> float:
        """Policy versions between an action and its training, on average."""
        return self.lag if self.mean_lag is None else self.mean_lag

    @property
    def synchronous(self) -> str:
        """The name of the runs that it is compared with; settings of one task and recipe share them."""
        return f"sync-{self.task}-{self.recipe}" if self.host == "local" else f"sync-{self.name}"

    def path(self, side: Side, seed: int) -> Path:
        """Where a run leaves its result."""
        name = self.name if side == "asynchronous" else self.synchronous
        return cells.RESULTS / "preregistered" / f"{name}-seed{seed}.json"

    def result(self, side: Side, seed: int) -> dict[str, Any] | None:
        """What a run has left; None if it has not been made."""
        path = self.path(side, seed)
        return json.loads(path.read_text()) if path.exists() else None

    def success(self, side: Side, seeds: Iterable[int]) -> dict[int, list[float]]:
        """The success curves of the runs that have been made, by seed."""
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
        # Imported here, because both read this file.
        if self.setting.host == "local":
            from benchmarks.learning.preregistered_run import run
        else:
            from benchmarks.learning.on_ray import run_setting as run
        run(*self)


def missing(settings: Iterable[Setting]) -> list[Run]:
    """The runs of `settings` that have no result, pair by pair."""
    runs: dict[Path, Run] = {}
    for setting in settings:
        for seed in setting.seeds:
            for side in SIDES:
                path = setting.path(side, seed)
                if not path.exists():
                    runs.setdefault(path, Run(setting, side, seed))
    return list(runs.values())


@dataclass(frozen=True, kw_only=True)
class Preregistration:
    """All of it."""

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
        """The setting of that name."""
        return next(setting for setting in self.settings if setting.name == name)

    @property
    def prefixes(self) -> list[str]:
        """What names of corrections and anchors begin with: of each policy, and of the other recipe."""
        policies = [policy["prefix"] for policy in self.corrections["policies"].values()]
        return list(dict.fromkeys([*policies, *self.anchors["recipes"]]))

    def streamed_share(self, setting: Setting) -> float:
        """What `setting` is to stream: all but the last piece of every batch, of what is trained at once."""
        if not setting.streamer.get("enabled", True):
            return 0.0
        local = setting.host == "local"
        shards = self.tasks[setting.task].shards if local else setting.given["shards"]
        at_once = 1 / STEPS if setting.streamer.get("steps") == "spread" else 1.0
        return float(1 - 1 / shards) * at_once

    def record(self, setting: Setting, side: Side, seed: int) -> dict[str, Any]:
        """What a run is, for its result file: a result counts while this is what the file says."""
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
def load(path: Path = FILE) -> Preregistration:
    """Read the file.

    Raises:
        ValueError: a setting names a task or a recipe that is not there, or two have one name.
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

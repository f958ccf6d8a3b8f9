"""The interface between a framework's package and the commands and the plugin."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import getfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rich.console import Console

from rlinf_async.core.config_keys import clipped, lookup, misspelt
from rlinf_async.entry_points import PREPARATIONS_GROUP, imported, load_class, provided

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf_async.observe.check import Check

HOSTS_GROUP = "rlinf_async.hosts"
SIMULATOR_KEYS = ("env_type", "simulator_type")
"""RLinf's and verl-vla's keys for a simulator."""
RayCluster = Literal["none", "own", "existing"]
"""The Ray cluster of a run: none; one on this machine, which the run may start (own); or a running one
(existing), as the run has several nodes or the config gives the cluster's address."""


@dataclass(frozen=True, kw_only=True)
class AssumedCluster:
    """A cluster that `explain` assumes, though it is not there."""

    nodes: int | None = None
    """Number of nodes; None: the number in the config."""
    gpus: int | None = None
    """Accelerators of each node; None: as many as this machine has."""
    gpu_memory: float | None = None
    """Gigabytes of each accelerator; None: as many as this machine's have."""


THIS_MACHINE = AssumedCluster()
"""The number of nodes in the config, each like this machine."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The keys that differ between runs of one config, and the facts that comparing those runs needs."""

    run_dir: str
    """The key of the run directory."""
    steps: tuple[str, int]
    """The key of the number of steps of a run, and its value."""
    seeds: Mapping[str, int]
    """Keys that hold a seed, and their values in the config; the first is the run's own."""
    overrides: tuple[str, ...] = ()
    """Overrides that every run gets, besides the user's."""
    off: str
    """A sentence on the runner that is used while all levels are off."""
    stock: StockRuns | None = None
    """Facts about the framework's own runs; None if this package also runs with all levels off."""


@dataclass(frozen=True, kw_only=True)
class StockRuns:
    """Facts that runs of a framework's own runner do not record by themselves."""

    env_steps: int
    """Fresh environment steps that each step trains."""
    stages: int
    """Pipeline stages of an env worker, stepped one after the other."""


class Host(Protocol):
    """A framework that this package extends to run asynchronously; an entry point of `rlinf_async.hosts`.

    A host is a subclass. Creating one is cheap: each method imports the modules of the framework that it
    needs.
    """

    marks: str = ""
    """The keys that a config of this framework has at least, in words for messages."""

    @property
    def setting_keys(self) -> Mapping[str, str]:
        """This host's dotted keys, separated by spaces, for each setting that other hosts have as well.

        All hosts have the same name for a setting; its numbers may be in units of the framework.
        """
        return {}

    @property
    def available(self) -> bool:
        """True if the framework can be imported in this environment, found without importing it."""

    @property
    def installed(self) -> bool:
        """True if the plugin is installed in this process."""

    def install(self) -> None:
        """Install the plugin in this process; a second call does nothing."""

    def remove(self) -> None:
        """Restore the framework as it was before `install`."""

    def serves(self, cfg: DictConfig) -> bool:
        """Return True if `cfg` is a config of this framework."""

    def recognised(self, cfg: DictConfig) -> str:
        """Return a sentence for a config that resembles this framework's and is not served: the kind of the
        config, and the program that runs it; empty if the config is not recognised.
        """
        return ""

    def ray_cluster(self, cfg: DictConfig) -> RayCluster:
        """Return the Ray cluster that a run of `cfg` needs."""

    def begin(self) -> AbstractContextManager[None]:
        """Begin in the background what takes a while, for a run that will start a Ray cluster of its own. The
        config has not been checked yet: what no cluster has taken ends with the block.
        """
        return nullcontext()

    def prepare(self, cfg: DictConfig) -> None:
        """Check a config before its run starts, and make the preparations that the run needs.

        Raises:
            ValueError: the config cannot run; the message has the remedy.
        """

    def train(self, cfg: DictConfig, *, dashboard: bool = False) -> None:
        """Run a prepared config. `dashboard`: start Ray's dashboard, if the run starts Ray."""

    def run_dir(self, cfg: DictConfig) -> Path:
        """Return the run directory of `cfg`."""

    def explain(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        """Return the plan of a run of `cfg` on `cluster`, as plain data that `show` prints and `--json`
        writes.

        Raises:
            ValueError: the config cannot run, with the remedy; or it describes its cluster itself.
        """

    def absent(self, cfg: DictConfig) -> list[str]:
        """Return the reasons why a run of `cfg` could not begin on this machine, but could on another."""
        return []

    def show(self, facts: Mapping[str, Any], console: Console) -> None:
        """Print the result of `explain`."""

    def resolved(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        """Return `cfg` as its run on `cluster` would record it, with every `auto` resolved, as plain data.

        Raises:
            ValueError: as in `explain`.
        """

    def workload(self, cfg: DictConfig) -> Workload:
        """Return the facts that all runs of a config share, independent of their levels.

        Raises:
            ValueError: the run trains nothing that could be compared, or the config lacks a key.
        """

    def checks(self) -> Sequence[Check]:
        """Return the checks of `doctor`: the framework is installed, and the plugin can extend it."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages on which a result depends, by name.

        Raises:
            ValueError: the framework is not installed, or this version of it cannot be extended.
        """


class PackagedHost(Host):
    """A host that delegates `explain` and `workload` to the modules `explain.py` and `workload.py` beside it.

    Each module is imported by the call that needs it. The file `keys.toml` beside them lists the host's keys.
    """

    @property
    def setting_keys(self) -> Mapping[str, str]:
        file = Path(getfile(type(self))).with_name("keys.toml")
        return tomllib.loads(file.read_text(encoding="utf-8"))["settings"]

    def explain(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        if self.ray_cluster(cfg) != "none":
            from rlinf_async.extras import check_interpreter

            check_interpreter()
        return self._own_module("explain").explain(cfg, cluster)

    def show(self, facts: Mapping[str, Any], console: Console) -> None:
        self._own_module("explain").show(facts, console)

    def workload(self, cfg: DictConfig) -> Workload:
        return self._own_module("workload").workload(cfg)

    def _own_module(self, name: str) -> ModuleType:
        # The modules are in the package of the subclass.
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.{name}")


def load(name: str) -> Host:
    """Return the host with that name.

    Raises:
    ValueError: no package provides it, or more than one does.
    """
    return load_class(HOSTS_GROUP, name)()


def every() -> list[Host]:
    """Return all hosts, sorted by name."""
    return [load(name) for name in sorted(provided(HOSTS_GROUP).names)]


@cache
def _setting_keys() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (setting, dotted keys) for every setting of every host; a setting has an item per host."""
    pairs = (pair for host in every() for pair in host.setting_keys.items())
    return tuple((setting, tuple(keys.split())) for setting, keys in pairs)


def counterparts(key: str) -> list[str]:
    """Return the other keys, of all hosts, for the same setting as the dotted `key`."""
    settings = {setting for setting, keys in _setting_keys() if key in keys}
    return [name for setting, keys in _setting_keys() for name in keys if setting in settings and name != key]


def host_of(cfg: DictConfig) -> Host:
    """Return the host of a config.

    Raises:
        ValueError: no host serves it.
    """
    names = sorted(provided(HOSTS_GROUP).names)
    # One after the other: a process loads no host behind the one that serves its config.
    for host in map(load, names):
        if host.serves(cfg):
            return host
    # Only if no host serves the config: `recognised` knows configs that resemble a framework's.
    for host in every():
        if advice := host.recognised(cfg):
            raise ValueError(advice)
    chosen = cfg.get("host")
    if isinstance(chosen, str) and (chosen in names or misspelt(chosen, names)):
        raise ValueError(
            f"host={clipped(chosen)} chooses nothing: the only host that a config names is local"
        )
    keys = f"whose keys are {clipped(', '.join(map(str, cfg)))}" if cfg else "which is empty"
    needs = "; ".join(f"{name} needs {load(name).marks or 'a config of its own'}" for name in names)
    raise ValueError(
        f"no host runs this config, {keys}: {needs}; begin with a config of `rlinf-async "
        "configs`, as in defaults: [metaworld_ppo_mlp]"
    )


def simulators_of(cfg: Mapping[str, Any]) -> set[Any]:
    """Return the names that a config gives the simulator of its training environments."""
    return {lookup(cfg, f"env.train.{key}") for key in SIMULATOR_KEYS}


def check_preparations(cfg: DictConfig) -> None:
    """Check the blocks of `cfg` that preparations read, before a run: a preparation may have a function
    `check` as an attribute, which is called with `cfg` and makes nothing.

    Raises:
        ValueError: a preparation would refuse its block.
    """
    for entry in provided(PREPARATIONS_GROUP):
        if cfg.get(entry.name) is not None and (check := getattr(imported(entry), "check", None)):
            check(cfg)


def make_ready(cfg: DictConfig) -> None:
    """Call the preparations that `cfg` needs, each with `cfg`; a preparation may add values to it.

    A preparation is needed if the config has a block of its name, or if it bears the name of the training
    environments' simulator. Its module is imported only then. A preparation of a simulator looks at
    `simulators_of`: a block of its name may be the user's own.
    """
    simulators = simulators_of(cfg)
    for entry in provided(PREPARATIONS_GROUP):
        if cfg.get(entry.name) is not None or entry.name in simulators:
            imported(entry)(cfg)

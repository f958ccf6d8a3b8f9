"""The interface between a framework's package and the commands and the plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import yaml
from rich.console import Console

from rlinf_async.entry_points import load_class
from rlinf_async.observe.check import Check
from rlinf_async.observe.files import read_named
from rlinf_async.observe.plain_data import MAX_YAML_BYTES

if TYPE_CHECKING:
    from omegaconf import DictConfig

HOSTS_GROUP = "rlinf_async.hosts"
PREPARATIONS_GROUP = "rlinf_async.preparations"
SIMULATOR_KEYS = ("env_type", "simulator_type")
"""RLinf's and verl-vla's keys for a simulator."""
RayCluster = Literal["none", "own", "existing"]
"""The cluster of a run: none at all; one on this machine, which the run may start by itself (own); or
one that runs already (existing), as it has several nodes or the config names its address."""


@dataclass(frozen=True, kw_only=True)
class AssumedCluster:
    """A cluster for which a config is explained without being there."""

    nodes: int | None = None
    """Number of nodes; None for the number in the config."""
    gpus: int | None = None
    """Accelerators of each node; None: as many as this machine has."""
    gpu_memory: float | None = None
    """Gigabytes of each accelerator; None: as this machine's."""


THIS_MACHINE = AssumedCluster()
"""The number of nodes in the config, each like this machine."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """By which keys runs of a config are told apart, and what has to be known to compare them."""

    run_dir: str
    """The key of the directory that a run writes into."""
    steps: tuple[str, int]
    """The key that says after how many steps a run ends, and how many these are."""
    seeds: Mapping[str, int]
    """Keys that hold a seed, and what the config gives them; the first is that of the run."""
    overrides: tuple[str, ...] = ()
    """Overrides of every run besides those of its user."""
    off: str
    """The runner that runs while all levels are off, in a sentence."""
    stock: StockRuns | None = None
    """The reader of the framework's own runs; None where runs with all levels off are this package's, too."""


@dataclass(frozen=True, kw_only=True)
class StockRuns:
    """Facts that runs of a framework's own runner do not record by themselves."""

    env_steps: int
    """Environment steps that a step trains for the first time."""
    stages: int
    """Pipeline stages of an env worker, which it steps one after the other."""


class Host(Protocol):
    """A framework whose runs this package makes asynchronous; an entry point of `rlinf_async.hosts`.

    A host is a subclass. Making one costs nothing: what needs the framework is imported by the call that
    needs it.
    """

    @property
    def available(self) -> bool:
        """True if the framework can be imported in this environment; finding out imports nothing of it."""

    @property
    def installed(self) -> bool:
        """True if the plugin is installed in this process."""

    def install(self) -> None:
        """Put the plugin into this process; twice is once."""

    def remove(self) -> None:
        """Leave the framework as it was."""

    def serves(self, cfg: DictConfig) -> bool:
        """Return True if `cfg` is a config of this framework."""

    def recognised(self, cfg: DictConfig) -> str:
        """Return what a config is that is near this framework and that it does not serve, and where to go
        with it; empty if it is nothing known."""
        return ""

    def ray_cluster(self, cfg: DictConfig) -> RayCluster:
        """Return the Ray cluster that a run of `cfg` needs."""

    def prepare(self, cfg: DictConfig) -> None:
        """Check a config before its run starts, and do what has to be there before.

        Raises:
            ValueError: it cannot run, with the remedy.
        """

    def train(self, cfg: DictConfig, *, dashboard: bool = False) -> None:
        """Run a config that is prepared. `dashboard`: serve Ray's, if the run starts Ray."""

    def run_dir(self, cfg: DictConfig) -> Path:
        """Return the directory into which a run of `cfg` writes its records."""

    def explain(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        """Return the plan of a run of `cfg` on `cluster`, as plain data that `show` prints and `--json`
        writes.

        Raises:
            ValueError: the config cannot run, with the remedy; or it names its cluster itself.
        """

    def show(self, facts: Mapping[str, Any], console: Console) -> None:
        """Print what `explain` says for a reader."""

    def resolved(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        """`cfg` as its run on `cluster` would write it down, with every `auto` resolved, as plain data.

        Raises:
            ValueError: as of `explain`.
        """

    def workload(self, cfg: DictConfig) -> Workload:
        """Return the facts that all runs of a config share, whichever levels are on.

        Raises:
            ValueError: the run trains nothing that could be compared, or the config lacks a key.
        """

    def checks(self) -> Sequence[Check]:
        """Check that the framework is here, can be extended, and lets the plugin in."""

    def versions(self) -> dict[str, str]:
        """Versions of what a result depends on, by name.

        Raises:
            ValueError: the framework is not here, or is one that cannot be extended.
        """


class PackagedHost(Host):
    """A host that has its answers in modules beside its own: `explain` and `workload`.

    They are imported by the call that needs them.
    """

    def explain(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        facts: dict[str, Any] = self._own_module("explain").explain(cfg, cluster)
        return facts

    def show(self, facts: Mapping[str, Any], console: Console) -> None:
        self._own_module("explain").show(facts, console)

    def workload(self, cfg: DictConfig) -> Workload:
        workload: Workload = self._own_module("workload").workload(cfg)
        return workload

    def _own_module(self, name: str) -> ModuleType:
        # In the package of the subclass, where `explain.py` and `workload.py` stand beside its host.
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.{name}")


def load(name: str) -> Host:
    """The host of that name.

    Raises:
        ValueError: no package provides it, or more than one.
    """
    host: Host = load_class(HOSTS_GROUP, name)()
    return host


def every() -> list[Host]:
    """All hosts, by their names."""
    return [load(name) for name in sorted(entry_points(group=HOSTS_GROUP).names)]


def recognised_file(path: Path) -> str:
    """Return what a host says of a file that it does not serve and that cannot be composed; empty if none.

    It is read by itself: what it is made of may be of a package that is not here.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        cfg = OmegaConf.create(yaml.safe_load(read_named(path, limit=MAX_YAML_BYTES)))
    except (OSError, OmegaConfBaseException, yaml.YAMLError):
        return ""  # the error of composing it says what is wrong
    if not isinstance(cfg, DictConfig):
        return ""
    return next((advice for host in every() if (advice := host.recognised(cfg))), "")


def host_of(cfg: DictConfig) -> Host:
    """Return the host of a config.

    Raises:
        ValueError: it is the config of none of the hosts.
    """
    for host in every():
        if host.serves(cfg):
            return host
    # Only when no host serves it: `recognised` tells of configs that are near a framework, and of no others.
    for host in every():
        if advice := host.recognised(cfg):
            raise ValueError(advice)
    names = ", ".join(sorted(entry_points(group=HOSTS_GROUP).names))
    raise ValueError(f"this is the config of none of the hosts {names}: see docs/install.md")


def make_ready(cfg: DictConfig) -> None:
    """Call the preparations that `cfg` asks for, each with `cfg`, which it may fill in.

    One is asked for if its name is a block of the config or that of the training environments' simulator, and
    its module is imported only then.
    """
    from omegaconf import OmegaConf

    simulators = {OmegaConf.select(cfg, f"env.train.{key}") for key in SIMULATOR_KEYS}
    for entry in entry_points(group=PREPARATIONS_GROUP):
        if cfg.get(entry.name) is not None or entry.name in simulators:
            entry.load()(cfg)

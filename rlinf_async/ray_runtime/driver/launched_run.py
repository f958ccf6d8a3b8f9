"""A run with its started processes, and the framework's hooks around a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlinf_async.core.gpu_shares import SharedGpu
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.driver.revivals import Elsewhere
from rlinf_async.ray_runtime.driver.saver import SaveHooks
from rlinf_async.ray_runtime.handles import Handle


class RunHooks(SaveHooks, Protocol):
    """The framework's work around a step; the driver calls these between two steps."""

    def due(self, step: int) -> tuple[bool, bool]:
        """Return two flags: evaluate after `step`, and save after `step`."""

    def log(self, batch: int, metrics: Mapping[str, float]) -> None:
        """Give the metrics of a batch to the framework's own loggers."""

    def finished(self) -> None:
        """Called last: everything is trained and written, and the processes of the run have ended."""


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """The parts of a run that `ray_runtime.driver.run` drives. No process has been called yet."""

    settings: RunSettings
    workers: Mapping[str, Sequence[Any]]
    """Ray's handles of "env", "inference" and "learner", in the order of the ranks."""
    requests: Handle
    """The handle of the request channel of the driver's node."""
    request_channel_on: Callable[[str], Handle]
    """Starts the request channel of another node, and returns its handle."""
    coordinator: Handle
    """The handle of the coordinator."""
    hooks: RunHooks
    run_dir: Path
    config: str
    """The resolved config of the run, as YAML."""
    versions: Mapping[str, str]
    """Versions of the packages that a result depends on, by name."""
    step: int
    """The number of steps trained before; the run begins with this version."""
    total: int
    """The last step of the run."""
    checkpoint: Path | None = None
    """The checkpoint that the run is resumed from, if any."""
    rate_settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the schedule of learning rates, by name; plain data."""
    resume: str = ""
    """The override with which the same command resumes from the newest checkpoint."""
    takes_turns: bool = False
    """True if learner, inference and simulators use the same accelerators by turns: `leave` then makes "env"
    and "inference" free their accelerators."""
    rebuild: Mapping[str, Callable[..., Any] | str] = field(default_factory=dict)
    """By group ("env", "inference"): the method that builds environments or policy in a process that replaces
    a dead one. Processes of other groups are not brought back."""
    shared_gpus: Sequence[SharedGpu] = ()
    """The GPUs with several processes of the run, if learner and inference ranks are limited to shares."""
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)
    """By group: the function that starts a process on another node if its own is lost."""

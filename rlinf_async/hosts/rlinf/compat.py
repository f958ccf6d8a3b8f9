"""What differs between the versions of RLinf that these classes extend: the only place that knows.

RLinf's users have checkouts on `PYTHONPATH`, of which two different ones call themselves 0.3.0, and wheels.
So what RLinf is here is decided by what `import rlinf` finds and by what its classes contain, never by the
metadata of an installed distribution. The sources are read rather than imported: importing RLinf's workers
takes seconds and needs the packages of simulators and models.

The names of `LOCATIONS` can be imported from this module, wherever the RLinf that is here keeps them.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rlinf_async.extras import RLINF_REMEDY

SUPPORTED = "0.3.x, and the main branch that calls itself 0.4.0"
"""The RLinf versions with which this package was run."""


LOCATIONS: dict[str, tuple[str, ...]] = {
    "EnvWorker": ("rlinf.workers.env.env_worker:EnvWorker",),
    "MultiStepRolloutWorker": ("rlinf.workers.rollout.hf.huggingface_worker:MultiStepRolloutWorker",),
    "EmbodiedFSDPActor": (
        "rlinf.workers.actor.embodied_fsdp_actor_worker:EmbodiedFSDPActor",
        "rlinf.workers.actor.fsdp_actor_worker:EmbodiedFSDPActor",
    ),
    "EmbodiedRunner": ("rlinf.runners.embodied_runner:EmbodiedRunner",),
    "Worker": ("rlinf.scheduler.worker.worker:Worker",),
    "Cluster": ("rlinf.scheduler.cluster.cluster:Cluster",),
    "EnvOutput": (
        "rlinf.data.schema.embodied_types:EnvOutput",
        "rlinf.data.embodied_io_struct:EnvOutput",
    ),
    "ChunkStepResult": (
        "rlinf.data.schema.embodied_types:ChunkStepResult",
        "rlinf.data.embodied_io_struct:ChunkStepResult",
    ),
    "Trajectory": (
        "rlinf.data.schema.embodied_types:Trajectory",
        "rlinf.data.embodied_io_struct:Trajectory",
    ),
    "EmbodiedTrajectoryBuilder": (
        "rlinf.data.schema.embodied_trajectory_builder:EmbodiedTrajectoryBuilder",
        "rlinf.data.embodied_io_struct:EmbodiedRolloutResult",
    ),
    "process_nested_dict_for_train": (
        "rlinf.utils.nested_dict_process:process_nested_dict_for_train",
        "rlinf.workers.actor.fsdp_actor_worker:process_nested_dict_for_train",
    ),
}
"""Names of RLinf, and where its versions define them, newest first, as `module:name`."""

NEEDED: dict[str, tuple[str, ...]] = {
    "EnvWorker": (
        "init_worker",
        "_setup_env_and_wrappers",
        "_init_env",
        "env_interact_step",
        "env_evaluate_step",
        "compute_bootstrap_rewards",
    ),
    "MultiStepRolloutWorker": (
        "init_worker",
        "predict",
        "get_bootstrap_values",
        "set_global_step",
    ),
    "EmbodiedFSDPActor": (
        "init_worker",
        "get_rollout_state_dict",
        "_process_received_rollout_batch",
        "compute_advantages_and_returns",
        "run_training",
        "train_micro_batch",
        "finish_global_batch",
        "set_global_step",
    ),
    "EmbodiedRunner": ("set_max_steps",),
    "Worker": ("create_group", "_load_user_extensions"),
    "Cluster": ("__init__",),
    "EmbodiedTrajectoryBuilder": ("append_step_result", "to_splited_trajectories_by_sizes"),
}
"""Methods that our classes call or override."""


@dataclass(frozen=True)
class RLinfTree:
    """The RLinf that `import rlinf` gives in this process."""

    root: Path
    """The folder of the package."""
    version: str
    """What it calls itself, or `of unknown version`."""
    missing: tuple[str, ...]
    """What our classes need and it does not have, as `Class` or `Class.method`."""

    def __str__(self) -> str:
        return f"RLinf {self.version} in {self.root}"


@cache
def rlinf_tree() -> RLinfTree | None:
    """Which RLinf is here; None where `import rlinf` finds none. Nothing of it is imported."""
    spec = find_spec("rlinf")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    return RLinfTree(root=root, version=_version(root), missing=tuple(_missing(root)))


def check_rlinf() -> RLinfTree:
    """The RLinf that is here, if our classes can extend it.

    Raises:
        ValueError: there is none, or it lacks what they need, with the remedy.
    """
    tree = rlinf_tree()
    if tree is None:
        raise ValueError(f"RLinf cannot be imported: {RLINF_REMEDY}")
    if tree.missing:
        raise ValueError(
            f"{tree} is not one that rlinf-async can extend: it has no {', '.join(tree.missing)}. "
            f"Supported are {SUPPORTED}; with async.mode=off RLinf runs by itself"
        )
    return tree


@contextmanager
def without_compiler() -> Iterator[None]:
    """Import RLinf for a look at it, in a process that computes nothing.

    RLinf has torch compile functions as it is imported, which loads torch's compiler: seconds of imports.
    """
    torch = importlib.import_module("torch")
    with patch.object(torch, "compile", lambda function=None, **_: function or (lambda given: given)):
        yield


def fail_unless_cleared() -> None:
    """Let the process end with its own exit status: RLinf's main branch turns most failures into 0.

    There, an exit hook ends the process with status 0 unless an exception has reached `sys.excepthook`, which
    Hydra's own `sys.exit(1)` does not. `clear_failure` is called when a run has ended well.
    """
    _note_failure(True)


def clear_failure() -> None:
    """The run has ended well; see `fail_unless_cleared`."""
    _note_failure(False)


def interact_step(worker: Any, actions: object, stage: int, env: object) -> tuple[Any, dict[str, Any]]:
    """`env_interact_step` of RLinf's env worker, of `env` in that stage: the env output and its statistics.

    RLinf's main branch returns a third value, for recorders that these runs do not have.
    """
    with _in_stage(worker.env_list, stage, env):
        output, info, *_ = worker.env_interact_step(actions, stage)
    return output, info


def evaluate_step(worker: Any, actions: object, stage: int, env: object) -> tuple[Any, dict[str, Any]]:
    """The same of `env_evaluate_step`."""
    with _in_stage(worker.eval_env_list, stage, env):
        output, info, *_ = worker.env_evaluate_step(actions, stage)
    return output, info


@contextmanager
def _in_stage(envs: Any, stage: int, env: object) -> Iterator[None]:
    """`env` stands in this stage for a step. Other stages, in other threads, are left alone.

    The worker itself must stay what it is: a subclass of it may call `super()`.
    """
    own, envs[stage] = envs[stage], env
    try:
        yield
    finally:
        if envs[stage] is env:  # else others have been built in its place, while this step hung
            envs[stage] = own


async def wait_env_delay(worker: Any, stage: int) -> None:
    """Wait for as long as `env.delay_sampler` has drawn, on RLinf versions that emulate latencies."""
    wait = getattr(worker, "_maybe_wait_env_delay", None)
    if wait is not None:
        await wait(stage)


def explained_variance(
    metrics: dict[str, list[Any]], reduce: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> dict[str, float]:
    """The critic's explained variance over a batch, on RLinf versions whose losses report sums for it.

    The sums are taken out of `metrics`, and `reduce` adds them over the ranks. Losses of RLinf 0.3 report
    the variance of each micro-batch instead, to be averaged as other metrics are: then nothing is taken.
    """
    utils = importlib.import_module("rlinf.utils.metric_utils")
    pop = getattr(utils, "pop_critic_explained_variance_stats", None)
    sums = pop(metrics) if pop is not None else {}
    if not sums:
        return {}
    variance = utils.compute_critic_explained_variance_from_stats(reduce(sums))
    return {utils.CRITIC_EXPLAINED_VARIANCE_KEY: float(variance)}


def drop_metric_logger(logger: Any) -> None:
    """Close a `MetricLogger` that has failed; its finalizer finds nothing left to close."""
    try:
        logger.finish()
    finally:
        logger._all_loggers = []


def _note_failure(failed: bool) -> None:
    cluster = __getattr__("Cluster")
    if hasattr(cluster, "_run_failed"):
        cluster._run_failed = failed


def dotted_name(name: str) -> str:
    """The dotted name of `name` in the RLinf that is here; without one, in the newest version."""
    tree = rlinf_tree()
    here = (place for place in LOCATIONS[name] if tree is not None and _defined(tree.root, place) is not None)
    return next(here, LOCATIONS[name][0]).replace(":", ".")


def __getattr__(name: str) -> Any:
    if name not in LOCATIONS:
        raise AttributeError(name)
    module, _, attribute = dotted_name(name).rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def given_to(function: str, file: str) -> set[str]:
    """The words that calls of `function` begin with in a file of the RLinf that is here."""
    tree = rlinf_tree()
    path = tree.root / file if tree is not None else Path("nowhere")
    if not path.is_file():
        return set()
    calls = [node for node in ast.walk(ast.parse(path.read_text(), str(path))) if isinstance(node, ast.Call)]
    named = [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) == function]
    firsts = [call.args[0] for call in named if call.args]
    return {first.value for first in firsts if isinstance(first, ast.Constant) and type(first.value) is str}


def _missing(root: Path) -> Iterator[str]:
    for name, locations in LOCATIONS.items():
        definition = next((node for place in locations if (node := _defined(root, place)) is not None), None)
        if definition is None:
            yield name
        elif isinstance(definition, ast.ClassDef):
            methods = {node.name for node in definition.body if isinstance(node, _FUNCTIONS)}
            yield from (f"{name}.{method}" for method in NEEDED.get(name, ()) if method not in methods)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _defined(root: Path, place: str) -> ast.stmt | None:
    """The definition that `place` (`module:name`) names in the sources under `root`, or None."""
    module, _, name = place.partition(":")
    path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return _definitions(path).get(name) if path.is_file() else None


@cache
def _definitions(path: Path) -> dict[str, ast.stmt]:
    body = ast.parse(path.read_text(), str(path)).body
    return {node.name: node for node in body if isinstance(node, (*_FUNCTIONS, ast.ClassDef))}


def _version(root: Path) -> str:
    """What the tree calls itself: in the project file beside it, or as an installed distribution."""
    project = root.parent / "pyproject.toml"
    if project.is_file():
        match = re.search(r'^version\s*=\s*"([^"]+)"', project.read_text(), re.MULTILINE)
        if match:
            return match[1]
    try:
        installed = distribution("rlinf")
    except PackageNotFoundError:
        return "of unknown version"
    same = Path(str(installed.locate_file("rlinf"))).resolve() == root.resolve()
    return installed.version if same else "of unknown version"

"""Classes looked up by entry point, so that another package can replace one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from rlinf_async.core.failures import ForeignError, Terminated, one_line

TAKE_ON_METHOD = "take_on"
"""The method of environments that can be told what to play."""
# All entry points of `rlinf_async.models` in pyproject.toml except `tiny_pi0`, which draws one denoise step
# for a whole forward pass, as RLinf's pi0 does (`hosts.rlinf.models.ONE_STEP_MODELS`).
OWN_MODELS = ("emulated", "gaussian_mlp", "logged", "smol_vla", "verl_vla")
"""Models of this package that draw random numbers for every sample separately."""

OWN_PACKAGE = "rlinf-async"
ENVS_GROUP, MODELS_GROUP = "rlinf_async.envs", "rlinf_async.models"
"""The groups of environments and of policies, by the names that configs have for them."""
PREPARATIONS_GROUP = "rlinf_async.preparations"
"""The group of functions that prepare a config before its run, by the block or the simulator they serve."""


def provided(group: str) -> EntryPoints:
    """Return the entry points of all packages in `group`, read once for each `sys.path`."""
    return _provided(group, tuple(map(str, sys.path)))


@cache
def _provided(group: str, path: tuple[str, ...]) -> EntryPoints:
    return entry_points(group=group)


def find(group: str, name: str) -> EntryPoint:
    """Return the entry point `name` of `group`; one of another package beats ours.

    Raises:
        ValueError: no package, or more than one other package, provides it.
    """
    matches = list(provided(group).select(name=name))
    foreign = [entry for entry in matches if entry.dist is None or entry.dist.name != OWN_PACKAGE]
    # By what they name: a package that is installed twice is one provider.
    if len({entry.value for entry in foreign}) > 1:
        packages = ", ".join(
            sorted(f"{entry.dist.name if entry.dist else '?'} ({entry.value})" for entry in foreign)
        )
        raise ValueError(f"more than one package provides {group}: {name}; keep one of {packages}")
    if not matches:
        names = ", ".join(names_of(group)) or "nothing"
        raise ValueError(f"no package provides {group}: {name}; there is {names}")
    return (foreign or matches)[0]


def names_of(group: str) -> list[str]:
    """The names that packages provide in `group`, in the order of the alphabet."""
    return sorted(provided(group).names)


def load_class(group: str, name: str) -> Any:
    """Import the class or function that `find` finds.

    Raises:
        ValueError: as by `find` and `imported`; or the entry point names something else.
    """
    entry = find(group, name)
    if not callable(found := imported(entry)):
        raise ValueError(
            f"the entry point {name} = {entry.value} ({group}) has to name a class or a function, and "
            f"names a {type(found).__name__}"
        )
    return found


def imported(entry: EntryPoint) -> Any:
    """Import what an entry point names; the import cannot change the working directory.

    Raises:
        ValueError: the module of another package cannot be imported, or lacks the name.
    """
    if entry.dist is not None and entry.dist.name == OWN_PACKAGE:
        return entry.load()  # a missing module is one of our extras, which the command names
    try:
        with _staying_here():
            return entry.load()
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # noqa: BLE001 a module may raise anything, as SystemExit
        package = f"mend the package {entry.dist.name}" if entry.dist else "mend its package"
        raise ValueError(
            f"the entry point {entry.name} = {entry.value} ({entry.group}) cannot be imported: "
            f"{one_line(error)}; {package}"
        ) from ForeignError.of(error)


@contextmanager
def _staying_here() -> Iterator[None]:
    """A block that changes no working directory: the paths of a run, such as its output, may be relative."""
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)

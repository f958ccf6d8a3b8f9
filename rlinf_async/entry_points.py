"""Classes looked up by entry point, so that another package can replace one of them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

OWN_PACKAGE = "rlinf-async"
ENVS_GROUP, MODELS_GROUP = "rlinf_async.envs", "rlinf_async.models"
"""The groups of environments and of policies, by the names that configs have for them."""


def find(group: str, name: str) -> EntryPoint:
    """Return the entry point `name` of `group`; one of another package beats ours.

    Raises:
        ValueError: no package, or more than one other package, provides it.
    """
    matches = list(entry_points(group=group, name=name))
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
    return sorted({entry.name for entry in entry_points(group=group)})


def load_class(group: str, name: str) -> Any:
    """Import what `find` finds."""
    return find(group, name).load()

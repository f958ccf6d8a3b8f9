"""How many processes each component has, from `cluster.component_placement`, before Ray is up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMPONENTS = ("env", "rollout", "actor")


def world_sizes(component_placement: Mapping[str, Any], *, resources: int) -> dict[str, int]:
    """Processes per component, with `resources` accelerators (or nodes, where there are none).

    Raises:
        ValueError: a component that every run needs is not placed, or its placement cannot be read.
    """
    sizes: dict[str, int] = {}
    for names, placement in component_placement.items():
        size = _world_size(str(names), placement, resources)
        for name in str(names).split(","):
            sizes[name.strip()] = size
    missing = [name for name in COMPONENTS if name not in sizes]
    if missing:
        raise ValueError(f"cluster.component_placement places {sorted(sizes)} but not {', '.join(missing)}")
    return sizes


def _world_size(names: str, placement: Any, resources: int) -> int:
    text = placement["placement"] if isinstance(placement, Mapping) else placement
    total = 0
    for part in str(text).split(","):
        if not part.strip():
            continue
        ranks, _, processes = part.partition(":")
        total += _count(processes or ranks, resources, f"cluster.component_placement.{names}={text}")
    if not total:
        raise ValueError(f"cluster.component_placement.{names}={text!r} places no process")
    return total


def _count(ranks: str, resources: int, where: str) -> int:
    if ranks.strip().lower() == "all":
        return resources
    first, _, last = (part.strip() for part in ranks.partition("-"))
    if not first.isdigit() or (last and not last.isdigit()) or (last and int(last) < int(first)):
        raise ValueError(f"{where}: {ranks!r} is not a rank, a range a-b, or all")
    return int(last or first) - int(first) + 1

"""The layers that FSDP2 wraps, each as a unit of its own. A learner rank imports this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_async.core.config_keys import misspelt
from rlinf_async.hosts.verl.view import UNITS_KEY


def why_no_units(policy: Any, units: str | Sequence[str] | None) -> str:
    """Return the reason why FSDP2 finds no layer of `policy` to wrap; empty if it finds one.

    Args:
        units: the value of `UNITS_KEY`; if it names nothing, veRL takes the policy's `_no_split_modules`.
    """
    names = (
        [units] if isinstance(units, str) else list(units or getattr(policy, "_no_split_modules", None) or ())
    )
    classes = _classes(policy)
    if len(missing_units(policy, names)) < len(names):
        return ""
    near = next(filter(None, (misspelt(name, classes) for name in names)), None)
    hint = f"did you mean {near!r}?" if near else f"it consists of {', '.join(classes)}"
    setting = f"{UNITS_KEY}={names}" if names else UNITS_KEY
    return f"{setting} must name layers of {type(policy).__name__} that FSDP2 wraps; {hint}"


def missing_units(policy: Any, units: Sequence[str]) -> list[str]:
    """Return those of `units`, names of classes, that no layer of `policy` has, nor the policy itself."""
    return [name for name in units if name not in (*_classes(policy), type(policy).__name__)]


def _classes(policy: Any) -> list[str]:
    return sorted({type(module).__name__ for module in policy.modules() if module is not policy})

"""One finding of the doctor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """One finding.

    `fail` means that a run cannot work, `warn` that it may not work well, `skip` that there was nothing to
    check, or that this check depends on one that has failed.
    """

    name: str
    status: Status
    detail: str
    mend: str = ""
    """The remedy: a command or a change; empty if nothing is wrong."""


def skipped(name: str, reason: str) -> Check:
    """Return the result of a check that was not made."""
    return Check(name, "skip", f"not tried: {reason}")


def without(failed: Sequence[Check], *names: str) -> list[Check]:
    """Return checks `names`, skipped because they depend on the `failed` ones and would only repeat them."""
    reason = f"it needs {', '.join(check.name for check in failed)}"
    return [skipped(name, reason) for name in names]


def failures(checks: Iterable[Check]) -> list[Check]:
    """Return the checks that have failed."""
    return [check for check in checks if check.status == "fail"]

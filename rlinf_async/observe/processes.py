"""The processes of a run, as its records call them."""

from __future__ import annotations

from enum import StrEnum


class Process(StrEnum):
    """The kinds of processes, in the order in which data passes them."""

    DRIVER = "driver"
    ENV = "env worker"
    REQUESTS = "request channel"
    INFERENCE = "inference rank"
    COORDINATOR = "coordinator"
    LEARNER = "learner rank"

    def numbered(self, rank: int) -> str:
        """`env worker 0`."""
        return f"{self} {rank}"


def kind_and_rank(name: str) -> tuple[str, int | None]:
    """`("env worker", 0)` of `env worker 0`; the driver has no rank."""
    kind, _, rank = name.rpartition(" ")
    return (kind, int(rank)) if kind and rank.isdecimal() else (name, None)

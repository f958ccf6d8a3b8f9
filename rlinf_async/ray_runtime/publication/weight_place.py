"""The place of weights in memory; a separate module, as the coordinator passes places on without torch."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_async.wire.connection import Address


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """The memory that holds a version of weights; other processes open it by this place."""

    machine: str
    process: int
    number: int
    inode: int
    """Tells memory files apart: numbers of processes and file descriptors repeat on other machines and are
    reused."""
    size: int
    """Bytes of the body, which follows the version number."""
    changes: bool
    """True for weights that training changes; newer versions of them follow."""
    version: int
    address: Address
    """The address of the process, for receivers that cannot map its memory."""

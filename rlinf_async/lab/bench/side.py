"""The facts about its host that a bench needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rlinf_async.lab.bench.modes import Mode
from rlinf_async.lab.bench.scenarios import Scenario


class Side(Protocol):
    """One host's part in a bench: which schedules there are, and how a config of the host says them."""

    modes: Mapping[str, Mode]
    standard: tuple[str, ...]
    """Modes that are run unless some are named."""
    quick: tuple[str, ...]
    """Modes of a quick bench."""
    over: str
    """The unit of throughput: the best mode that is `sync`."""
    others: str
    """One word for all modes that are not this package's levels."""

    def check(self) -> None:
        """See whether the host is here.

        Raises:
            ValueError: it is not, with the remedy.
        """

    def unavailable(self, scenario: Scenario) -> str | None:
        """Why a scenario cannot run on this machine under this host, or None."""

    def config(self, scenario: Scenario) -> str:
        """The name of the config that a scenario is made of."""

    def overrides(self, scenario: Scenario, mode: Mode, *, log: str) -> list[str]:
        """Return the overrides that make that config the scenario in a mode; processes log into `log` what
        they served.
        """

    def run(self, *, directory: Path, steps: int, seed: int) -> list[str]:
        """Return the overrides for a run of `steps` global steps, which writes into `directory`."""

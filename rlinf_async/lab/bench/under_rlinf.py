"""A bench under RLinf: its own modes next to the levels of this package."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from rlinf_async.extras import pip_install
from rlinf_async.hosts.rlinf.tree import check_rlinf
from rlinf_async.lab.bench.modes import BENCH_MODES, STANDARD_MODES, Mode
from rlinf_async.lab.bench.scenarios import Scenario
from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, missing_libero
from rlinf_async.lab.demo.simulators.vulkan import check_vulkan


class UnderRLinf:
    """Fills `side.Side`."""

    modes: Mapping[str, Mode] = BENCH_MODES
    standard: tuple[str, ...] = STANDARD_MODES
    quick: tuple[str, ...] = ("stock-sync-1", "stock-async", "full")
    over = "RLinf's synchronous loop"
    others = "stock"

    def check(self) -> None:
        check_rlinf()

    def unavailable(self, scenario: Scenario) -> str | None:
        if scenario.name == "metaworld" and importlib.util.find_spec("metaworld") is None:
            return f"Meta-World is not installed: {pip_install('metaworld')}"
        if scenario.name == "libero-real":
            if not os.environ.get(ASSETS_VARIABLE):
                return f"{ASSETS_VARIABLE} names no folder of LIBERO's assets, see docs/install.md"
            return missing_libero()
        if scenario.name == "maniskill-real":
            if importlib.util.find_spec("mani_skill") is None:
                return "ManiSkill is not installed, see docs/install.md"
            vulkan = check_vulkan()
            return None if vulkan.status == "ok" else f"{vulkan.detail}; {vulkan.mend}"
        return None

    def config(self, scenario: Scenario) -> str:
        return scenario.config

    def overrides(self, scenario: Scenario, mode: Mode, *, log: str) -> list[str]:
        return [*scenario.overrides(log=log), *mode.overrides_for(scenario)]

    def run(self, *, directory: Path, steps: int, seed: int) -> list[str]:
        return [f"runner.max_epochs={steps}", f"runner.logger.log_path={directory}", f"actor.seed={seed}"]

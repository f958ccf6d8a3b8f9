"""Checks that ManiSkill finds a Vulkan device, which it needs even without rendering."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_async.core.config_keys import lookup
from rlinf_async.extras import is_here
from rlinf_async.hosts.host import simulators_of
from rlinf_async.observe.check import Check, skipped
from rlinf_async.observe.probes import probe

if TYPE_CHECKING:
    from omegaconf import DictConfig

DRIVERS_VARIABLE = "VK_ICD_FILENAMES"
"""Environment variable with the description files of Vulkan drivers, in place of the system's own."""

SOFTWARE_DRIVER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""SwiftShader, a Vulkan driver that computes on the CPU, in Debian's package chromium-common."""

VULKAN_PROBE = """
import sapien
sapien.render.RenderMaterial()  # every task makes one
"""


def check_vulkan(code: str = VULKAN_PROBE, driver: Path = SOFTWARE_DRIVER) -> Check:
    """Check that tasks can be built: a driver of a GPU or of the CPU answers.

    Args:
        driver: the description file of the software driver; it may not exist.
    """
    if not (is_here("mani_skill") and is_here("sapien")):
        return skipped("vulkan", "ManiSkill is not installed")
    driver_list = os.environ.get(DRIVERS_VARIABLE)
    failure = probe(code)
    if failure is None:
        where = f"{DRIVERS_VARIABLE}={driver_list}" if driver_list else "a driver of the system"
        return Check("vulkan", "ok", f"ManiSkill has {where}")
    remedy = f"without a GPU: export {DRIVERS_VARIABLE}={driver}"
    if not driver.is_file():
        remedy = f"without a GPU: apt-get install libx11-6 chromium-common, and {remedy.partition(': ')[2]}"
    return Check("vulkan", "warn", f"ManiSkill cannot build a task: {failure}", remedy)


def require_vulkan(cfg: DictConfig) -> None:
    """Check before a run that tasks can be built, if the whole run is on this machine.

    Raises:
        ValueError: tasks cannot be built; the message has the remedy.
    """
    elsewhere = (lookup(cfg, "cluster.num_nodes") or 1) > 1 or lookup(cfg, "cluster.node_groups")
    if "maniskill" not in simulators_of(cfg) or elsewhere or lookup(cfg, "env.train.env_class"):
        return
    check = check_vulkan()
    if check.status == "warn":
        raise ValueError(f"env.train.env_type=maniskill: {check.detail}; {check.mend}")

"""Looks at the machine before a run does: what is right, odd or wrong, and how to mend it.

Each check is one function that returns one `Check`. What it looks at comes in as arguments, so that a test
can pass a bad machine; whatever could hang, crash or leave something behind runs in a subprocess.
"""

from __future__ import annotations

import os
import resource
import sys

from rlinf_async.doctor import installation, machine, vulkan
from rlinf_async.doctor.check import Check
from rlinf_async.hosts.rlinf.compat import rlinf_tree

__all__ = ["Check", "run_checks"]


def run_checks() -> list[Check]:
    """Every check, in the order in which a reader should mend what they find."""
    installed = installation.version
    commands = machine.command_lines()
    return [
        installation.check_python(sys.version_info[:3]),
        installation.check_torch(installed("torch")),
        installation.check_rlinf(rlinf_tree()),
        installation.check_ray(installed("ray")),
        installation.check_range("hydra-core", installed("hydra-core"), least=(1, 3), below=(1, 4)),
        installation.check_range("omegaconf", installed("omegaconf"), least=(2, 3), below=(2, 4)),
        installation.check_extras({name: installed(name) for name in ("plotly", "jinja2", "matplotlib")}),
        installation.check_entry_points(installation.entry_points()),
        installation.check_driver_hook(),
        installation.check_worker_hook(),
        installation.check_plugin_scan(installation.scan_source()),
        machine.check_rendering(),
        vulkan.check_vulkan(),
        machine.check_ray_address(commands, noted=machine.noted_cluster(os.environ), environ=os.environ),
        machine.check_dashboard(commands),
        machine.check_shared_memory(free=machine.free_shared_memory(), memory=machine.memory()),
        machine.check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        machine.check_threads(cores=len(os.sched_getaffinity(0)), threads=os.environ.get("OMP_NUM_THREADS")),
    ]

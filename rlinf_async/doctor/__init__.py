"""Looks at the machine before a run does: what is right, odd or wrong, and how to mend it.

Each check is one function that returns one `Check`. What it looks at comes in as arguments, so that a test
can pass a bad machine; whatever could hang, crash or leave something behind runs in a subprocess.
"""

from __future__ import annotations

import os
import resource
import sys

from rlinf_async.demo.simulators import vulkan
from rlinf_async.doctor import installation, machine
from rlinf_async.hosts.host import every
from rlinf_async.observe.check import Check, version

__all__ = ["Check", "run_checks"]


def run_checks() -> list[Check]:
    """Every check, in the order in which a reader should mend what they find."""
    commands = machine.command_lines()
    return [
        installation.check_python(sys.version_info[:3]),
        installation.check_torch(version("torch")),
        installation.check_extras({name: version(name) for name in ("jinja2", "matplotlib")}),
        installation.check_entry_points(installation.entry_points()),
        *(check for host in every() for check in host.checks()),
        machine.check_rendering(),
        vulkan.check_vulkan(),
        machine.check_ray_address(commands, noted=machine.noted_cluster(os.environ), environ=os.environ),
        machine.check_dashboard(commands),
        machine.check_shared_memory(free=machine.free_shared_memory(), memory=machine.memory()),
        machine.check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        machine.check_threads(cores=len(os.sched_getaffinity(0)), threads=os.environ.get("OMP_NUM_THREADS")),
    ]

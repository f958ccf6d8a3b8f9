"""Checks the installation and the machine before a run: each fault with its remedy.

Each check is one function that returns one `Check`. The facts to check are arguments, so that a test can pass
those of a bad machine. Code that could hang, crash or leave files behind runs in a subprocess.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys

from rlinf_async.doctor import gpu, installation, machine, nodes
from rlinf_async.entry_points import load_class, names_of
from rlinf_async.extras import remedy
from rlinf_async.hosts.host import every
from rlinf_async.observe.check import Check, without
from rlinf_async.observe.forking import shared_interpreter
from rlinf_async.observe.probes import version

__all__ = ["Check", "run_checks"]

CHECKS_GROUP = "rlinf_async.checks"
"""Entry points of functions without arguments that check this machine for a simulator."""


def run_checks() -> list[Check]:
    """Run every check; faults should be fixed in the order of the results."""
    with shared_interpreter():
        return [*_check_installation(), *_machine()]


def _check_installation() -> list[Check]:
    torch = installation.check_torch(version("torch"))
    ground = [
        installation.check_python(
            sys.version_info[:3], optimize=sys.flags.optimize, warnings=sys.warnoptions
        ),
        torch,
        installation.check_extras({name: version(name) for name in ("jinja2",)}),
    ]
    if torch.status == "fail":
        # The names of the checks below, which need torch.
        names = ("gpu", "nccl", "entry points", "frameworks")
        return [*ground, *without([torch], *names)]
    gpus = gpu.Gpus.found()
    return [
        *ground,
        gpu.check_gpu(gpus, driver=gpu.driver()),
        gpu.check_nccl(gpus),
        installation.check_entry_points(installation.entry_points()),
        *_frameworks(),
    ]


def _frameworks() -> list[Check]:
    try:
        hosts = every()
    except ModuleNotFoundError as error:
        if (what_to_do := remedy(error)) is None:
            raise
        need, _, command = what_to_do.partition(": ")
        return [Check("frameworks", "fail", f"no config can be read: {need}", command)]
    return [check for host in hosts for check in host.checks()]


def _machine() -> list[Check]:
    commands, memory = machine.command_lines(), machine.memory()
    disks = {
        purpose: (path, shutil.disk_usage(path)) for purpose, path in machine.folders(os.environ).items()
    }
    return [
        machine.check_rendering(),
        *(load_class(CHECKS_GROUP, name)() for name in names_of(CHECKS_GROUP)),
        machine.check_ray_address(commands, noted=machine.noted_cluster(os.environ), environ=os.environ),
        machine.check_sockets(os.environ),
        nodes.check_nodes(os.environ),
        machine.check_dashboard(commands),
        machine.check_memory(available=machine.available_memory(), memory=memory),
        machine.check_shared_memory(free=machine.free_shared_memory(), memory=memory),
        machine.check_disk(
            {purpose: (path, disk.free, disk.total) for purpose, (path, disk) in disks.items()}
        ),
        machine.check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        machine.check_processes(),
        machine.check_threads(cores=len(os.sched_getaffinity(0)), threads=os.environ.get("OMP_NUM_THREADS")),
    ]

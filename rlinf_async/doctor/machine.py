"""Checks of the machine: rendering, running Ray clusters, and the resources that a run on Ray needs."""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlinf_async.extras import is_here
from rlinf_async.observe.check import Check, skipped
from rlinf_async.observe.probes import probe
from rlinf_async.observe.read_files import read_regular
from rlinf_async.ray_runtime.cluster.environment import (
    SHORT_FOLDER_REMEDY,
    folder_of_ray,
    misplaced_sockets,
    unanswered,
)
from rlinf_async.ray_runtime.cluster.thread_room import short_of_threads

GIB_BYTES = 1 << 30
LEAST_SHARED_MEMORY = 2 * GIB_BYTES
LEAST_OPEN_FILES = 4096
# `check_memory` names this number in its remark.
LEAST_MEMORY = 4 * GIB_BYTES
LEAST_DISK = 5 * GIB_BYTES
FULL_DISK = 0.95
"""Used share of a file system above which Ray writes no more objects to it."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
FEW_CORES = 16
"""Up to this number of cores, a thread pool in every worker process is sure to oversubscribe the machine."""

RENDER_PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
renderer = mujoco.Renderer(model, 16, 16)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
renderer.render()
renderer.close()
"""


def command_lines(proc: Path = Path("/proc")) -> list[list[str]]:
    """The arguments of every process that this user may read."""
    lines = []
    for process in proc.glob("[0-9]*"):
        try:
            raw = (process / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile, or belongs to another user
            continue
        lines.append(raw.decode(errors="replace").rstrip("\0").split("\0"))
    return lines


def flag_values(commands: Sequence[Sequence[str]], flag: str) -> set[str]:
    """The values that `--flag=value` has in the given command lines."""
    return {arg.partition("=")[2] for command in commands for arg in command if arg.startswith(f"{flag}=")}


MAX_NOTE_BYTES = 1000
"""Most bytes that are read of the file with the address of the last `ray start`."""


def noted_cluster(environ: Mapping[str, str]) -> str | None:
    """The address that the last `ray start` left for `address="auto"`, if any."""
    note = Path(folder_of_ray(environ)[0], "ray", "ray_current_cluster")
    try:
        return read_regular(note, limit=MAX_NOTE_BYTES).decode(errors="replace").strip()
    except OSError:  # the folder may belong to another account, and the name may be no regular file
        return None


def free_shared_memory() -> int:
    return shutil.disk_usage("/dev/shm").free


def memory() -> int:
    """The bytes that this machine, or this container, may use."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # "max" is the kernel's word for no limit.
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    return physical if limit == "max" else min(physical, int(limit))


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """The bytes of this machine that are available without swapping."""
    lines = meminfo.read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(kilobytes)


def check_memory(*, available: int, memory: int) -> Check:
    """Check that there is enough main memory for a run."""
    # The kernel's `available` is that of the machine, even in a container with a lower limit.
    available = min(available, memory)
    detail = f"{available / GIB_BYTES:.1f} of {memory / GIB_BYTES:.1f} GiB free"
    if available < LEAST_MEMORY:
        remedy = "end what holds it (ps aux --sort=-rss), or give the container more"
        detail += ", where the smallest run on Ray takes about 4; at 95 % Ray kills processes"
        return Check("memory", "warn", detail, remedy)
    return Check("memory", "ok", detail)


def folders(environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders that a run writes to: Ray's, and that of run directories, by default the current
    one."""
    return {"Ray's files": Path(folder_of_ray(environ)[0]), "run directories": Path.cwd()}


def check_disk(used: Mapping[str, tuple[Path, int, int]]) -> Check:
    """Check for room in the folders of a run; `used` has (folder, free bytes, all bytes) by purpose."""
    small = [
        f"{path} ({purpose})"
        for purpose, (path, free, total) in used.items()
        if free < LEAST_DISK or free < (1 - FULL_DISK) * total
    ]
    detail = ", ".join(f"{free / GIB_BYTES:.0f} GiB free in {path}" for path, free, _ in used.values())
    if small:
        remedy = "export RAY_TMPDIR=/a/larger/folder, and choose another runner.logger.log_path"
        return Check("disk", "warn", f"{detail}; little room in {', '.join(small)}", remedy)
    return Check("disk", "ok", detail)


def check_rendering(backends: Sequence[str] = ("egl", "osmesa"), code: str = RENDER_PROBE) -> Check:
    """Check which OpenGL back end renders without a screen."""
    if not is_here("mujoco"):
        return skipped("rendering", "mujoco is not installed")
    # A process for each back end: the variables are read once, at the import of their packages.
    failures = {name: probe(code, env={"MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}) for name in backends}
    works = [name for name, failure in failures.items() if failure is None]
    backend = os.environ.get("MUJOCO_GL")
    if not works:
        detail = "; ".join(f"{name}: {failure}" for name, failure in failures.items())
        return Check("rendering", "warn", detail, "apt-get install libegl1 libgl1-mesa-dri libosmesa6")
    if backend in failures and backend not in works:
        detail = f"MUJOCO_GL={backend}: {failures[backend]}"
        return Check("rendering", "warn", detail, f"export MUJOCO_GL={works[0]} PYOPENGL_PLATFORM={works[0]}")
    return Check("rendering", "ok", f"MUJOCO_GL={' or '.join(works)}")


def check_ray_address(
    commands: Sequence[Sequence[str]], *, noted: str | None, environ: Mapping[str, str]
) -> Check:
    """Check that a framework's `ray.init` would not join a cluster by accident."""
    address = environ.get("RAY_ADDRESS", "")
    if problem := unanswered(environ):
        return Check("ray address", "fail", problem, "export RAY_ADDRESS=local, or start that cluster")
    if address not in ("", "auto"):
        return Check("ray address", "ok", f"RAY_ADDRESS={address}")
    raylets = [command for command in commands if "raylet" in Path(command[0]).name]
    running = flag_values(raylets, "--gcs-address") | ({noted} if noted else set())
    if running:
        detail = (
            f"RAY_ADDRESS is not set: scripts of RLinf and veRL will join the Ray cluster at "
            f"{', '.join(sorted(running))}"
        )
        remedy = "export RAY_ADDRESS=local, unless that is the cluster you mean"
        return Check("ray address", "warn", detail, remedy)
    return Check("ray address", "ok", "no Ray cluster is running here")


def check_sockets(environ: Mapping[str, str]) -> Check:
    """Check that Ray can make its sockets here."""
    if problem := misplaced_sockets(environ):
        return Check("ray files", "fail", problem, SHORT_FOLDER_REMEDY)
    return Check("ray files", "ok", f"in {folder_of_ray(environ)[0]}")


def check_dashboard(commands: Sequence[Sequence[str]]) -> Check:
    """Check that a running Ray dashboard, which accepts jobs, listens on this machine only."""
    dashboards = [
        command for command in commands if any(arg.endswith("dashboard/dashboard.py") for arg in command)
    ]
    hosts = sorted(flag_values(dashboards, "--host"))
    open_hosts = [host for host in hosts if not (host.startswith("127.") or host in ("localhost", "::1"))]
    if open_hosts:
        detail = (
            f"listens on {', '.join(open_hosts)}: all who reach it can run code unless Ray asks for a token"
        )
        return Check(
            "ray dashboard", "warn", detail, "ray stop, then ray start with --dashboard-host=127.0.0.1"
        )
    return Check("ray dashboard", "ok", f"listens on {', '.join(hosts)}" if hosts else "none is running")


def check_shared_memory(*, free: int, memory: int) -> Check:
    """Check that Ray's object store, by default 30 % of the memory, fits into /dev/shm."""
    need = max(LEAST_SHARED_MEMORY, 3 * memory // 10)
    detail = f"{free / GIB_BYTES:.1f} GiB free in /dev/shm"
    if free < need:
        remedy = f"in a container, start it with --shm-size={math.ceil(need / GIB_BYTES)}g"
        return Check("shared memory", "warn", f"{detail}, where Ray wants {need / GIB_BYTES:.1f} GiB", remedy)
    return Check("shared memory", "ok", detail)


def check_open_files(limit: int) -> Check:
    if limit == resource.RLIM_INFINITY:
        return Check("open files", "ok", "no limit")
    if limit < LEAST_OPEN_FILES:
        detail = f"limit of {limit}, where at least {LEAST_OPEN_FILES} are needed"
        return Check("open files", "warn", detail, f"ulimit -n {LEAST_OPEN_FILES}")
    return Check("open files", "ok", f"limit of {limit}")


def check_processes() -> Check:
    """Check that the threads of a run on Ray fit into the limits of this account and this container."""
    if problem := short_of_threads():
        found, _, remedy = problem.partition("; ")
        return Check("processes", "fail", found, remedy)
    return Check("processes", "ok", "room for the threads of a run on Ray")


def check_threads(*, cores: int, threads: str | None) -> Check:
    """Check that worker processes do not each start a thread per core."""
    if threads is None and cores <= FEW_CORES:
        detail = f"{cores} CPU cores and OMP_NUM_THREADS is not set: worker processes will compete for cores"
        return Check("threads", "warn", detail, "export OMP_NUM_THREADS=1")
    return Check("threads", "ok", f"{cores} CPU cores, OMP_NUM_THREADS={threads or 'not set'}")

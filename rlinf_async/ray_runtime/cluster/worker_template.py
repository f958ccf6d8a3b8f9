"""The template of a cluster: a process that imports what most of Ray's workers import, and forks them.

    python worker_template.py LISTENER FOLDER PLAN

LISTENER is the number of a socket, where `start_worker` asks. FOLDER is that of the driver's script. PLAN is
JSON: modules to import at once (`early`), and others after Ray (`modules`); variables of Ray's workers with
their values (`assigned`), and the name of the one with the raylet's number (`raylet`); and variables that may
differ between workers unless an import has read them here (`free`), in any case (`checked`), or where this
process has a value of no worker (`unassigned`).

The driver may start the template before it has looked at its config: until Ray starts, the template ends with
the driver. When Ray's raylet has started, the driver writes its number and the driver's variables to the
standard input as JSON, and closes it. Ray is imported then, as it reads variables at that time; the template
and its children end with the raylet. A child becomes the worker that Ray wanted, with its environment,
folder, streams, signals and limits, and answers `start_worker` itself; without an answer that starts Python.
So whatever is unusual only has to end the child, or the template.

It is run by its path, so it imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

RAYS_WORKER = "ray._private.workers.default_worker"
OOM_SCORE = Path("/proc/self/oom_score_adj")
GREETING, FORKED = b"?", b"!"
REQUEST_TIMEOUT_S = 10.0
GRACE_S = 10.0
"""Seconds in which workers end by themselves when their raylet has."""
PR_SET_PDEATHSIG = 1
HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})
"""jemalloc, which PyArrow brings, starts its own thread again in a child."""
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "MKL_", "KMP_", "OMP_", "OPENBLAS_", "GOMP_")
"""The beginnings of names of variables that Python and libraries read when a process starts."""
HARMLESS_FILES = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/shm/", "/dev/pts/", "/dev/tty")


def main(words: Sequence[str]) -> list[str] | None:
    """Return the arguments of a worker, in a child that is to become it; None when the template ends."""
    # An interrupt of the driver is for the driver; Ray blocks it in its own processes.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    _end_with_the_driver(True)
    listener, plan = socket.socket(fileno=int(words[0])), json.loads(words[2])
    if not sys.flags.safe_path:
        # Where Python puts the folder of a worker's script; until now it was that of this file.
        ray: Any = find_spec("ray")
        sys.path[0] = str(Path(ray.origin).parent / "_private" / "workers")
    with _read_variables() as read:
        _import(plan["early"])
    raylet = _adopt_cluster(plan, read)
    if raylet is None:
        return None
    with _read_variables() as read_later:
        _import_with_ray(plan["modules"])
    if not _can_be_forked() or _hidden_by([words[1], str(Path.cwd())]):
        return None
    free = frozenset(plan["free"]) - read - read_later | frozenset(plan["checked"])
    free |= {name for name, value in plan["unassigned"].items() if os.environ.get(name) == value}
    workers = Workers()
    connections = _connections(listener, raylet)
    for connection in connections:
        with connection, _request(connection) as found:
            if found is None or not _is_one_of_us(found[0]):
                continue
            if not _fits(found[0]["environment"], free) or _threads() != 1 or not workers.fork():
                continue
            connections.close()
            listener.close()
            try:
                _become(*found)
                connection.sendall(FORKED)
            except (OSError, ValueError):
                os._exit(1)
            arguments: list[str] = found[0]["arguments"]
            return arguments
    workers.end()
    return None


class Workers:
    """The children that live, by files that stand for processes: a number may be that of another by now."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def fork(self) -> bool:
        """Return True in a new child."""
        self._wait(0)
        child = os.fork()
        if child == 0:
            while self._files:
                os.close(self._files.pop())
            return True
        with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody waits for it
            self._files.append(os.pidfd_open(child))
        return False

    def end(self) -> None:
        """Kill those that live after `GRACE_S`: some never notice that their raylet has died."""
        deadline = time.monotonic() + GRACE_S
        while self._files and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        for file in self._files:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)

    def _wait(self, seconds: float) -> None:
        """Wait until one has ended, and forget all that have."""
        poll = select.poll()
        for file in self._files:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(seconds * 1000):
            self._files.remove(file)
            os.close(file)


def _end_with_the_driver(does: bool) -> None:
    """Have the kernel kill this process when its parent has ended, or not any more: imports take seconds, in
    which nothing else would notice.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL if does else 0)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if does and poll.poll(0) == [(0, select.POLLHUP)]:  # it had ended before
        os._exit(0)


@contextlib.contextmanager
def _read_variables() -> Iterator[set[str]]:
    """The names of the variables that Python code looks up inside the block."""
    read: set[str] = set()
    kind: Any = type(os.environ)
    look_up = kind.__getitem__

    def look_up_and_note(environment: Any, name: str) -> str:
        read.add(name)
        value: str = look_up(environment, name)
        return value

    kind.__getitem__ = look_up_and_note
    try:
        yield read
    finally:
        kind.__getitem__ = look_up


def _import(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)


class _ActorClassID:
    """Takes the place of Ray's class while modules are imported.

    Ray's decorators draw such a number; and Ray's source of random numbers, once used, gives the same ones to
    all children.
    """

    @staticmethod
    def from_random() -> Any:
        raylet: Any = sys.modules["ray._raylet"]
        return raylet.ActorClassID(os.urandom(raylet.ActorClassID.size()))


def _import_with_ray(names: Sequence[str]) -> None:
    _import([RAYS_WORKER])
    actor: Any = importlib.import_module("ray.actor")
    given, actor.ActorClassID = actor.ActorClassID, _ActorClassID
    try:
        _import(names)
    finally:
        actor.ActorClassID = given


def _adopt_cluster(plan: Mapping[str, Any], read: set[str]) -> int | None:
    """Wait for the raylet, and set the variables that its workers will have; return a file that stands for
    the raylet. None if the driver or the raylet has ended, or this process has read another value.
    """
    try:
        cluster = json.load(sys.stdin)
        raylet = os.pidfd_open(cluster["raylet"])
    except (ValueError, OSError):
        return None
    _end_with_the_driver(False)
    variables = {**cluster["environment"], **plan["assigned"], plan["raylet"]: str(cluster["raylet"])}
    changed = {name for name in {*variables, *os.environ} if variables.get(name) != os.environ.get(name)}
    if not changed.isdisjoint(read) or any(name.startswith(READ_AT_START) for name in changed):
        return None
    os.environ.clear()
    os.environ.update(variables)
    return raylet


def _can_be_forked() -> bool:
    """Return True if children get random numbers of their own, and this process has one thread and has
    opened no device, which a child could not use.
    """
    # Also OpenBLAS ends its threads before a fork, and starts them again when it computes.
    drawn = [_drawn_by_a_child(), _drawn_by_a_child()]
    if not all(drawn) or drawn[0] == drawn[1]:
        return False
    files = [_target(link) for link in Path("/proc/self/fd").iterdir()]
    devices = [file for file in files if file.startswith("/dev/") and not file.startswith(HARMLESS_FILES)]
    gc.collect()
    gc.freeze()
    # Children are not waited for; and Ray takes one that has ended so for one that lives.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return _threads() == 1 and not devices


def _drawn_by_a_child() -> bytes:
    """Return a random number of Ray's; nothing if the child has failed."""
    own, childs = socket.socketpair()
    with own, childs:
        child = os.fork()
        if child == 0:
            raylet: Any = sys.modules["ray._raylet"]
            childs.sendall(raylet.WorkerID.from_random().binary())
            os._exit(0)
        childs.close()
        number = own.recv(64)
    os.waitpid(child, 0)
    return number


def _threads() -> int:
    """Return the number of threads of this process that a fork would lose."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return sum(name not in HARMLESS_THREADS for name in names)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # the listing's own file, which is closed by now


def _hidden_by(folders: Sequence[str]) -> bool:
    """Return True if a worker could find another module than the one loaded here: Ray puts the folders of the
    driver first when the worker has started.
    """
    for name, module in list(sys.modules.items()):
        if "." not in name and name != "__main__":
            specs = [PathFinder.find_spec(name, [folder]) for folder in folders]
            if any(spec and spec.origin and not _is_at(module, spec.origin) for spec in specs):
                return True
    return False


def _is_at(module: ModuleType, origin: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file) == os.path.realpath(origin)


def _connections(listener: socket.socket, raylet: int) -> Generator[socket.socket]:
    """Yield what connects, until the raylet ends."""
    poll = select.poll()
    for file in (listener.fileno(), raylet):
        poll.register(file, select.POLLIN)
    try:
        while raylet not in {file for file, _ in poll.poll()}:
            yield listener.accept()[0]
    finally:
        os.close(raylet)


@contextlib.contextmanager
def _request(connection: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]] | None]:
    """The request of `start_worker` with its three streams, which are closed behind the block; None if it has
    ended, or somebody else has connected.
    """
    files: list[int] = []
    found = None
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] == os.getuid():
            connection.settimeout(REQUEST_TIMEOUT_S)
            connection.sendall(GREETING)
            _, files, _, _ = socket.recv_fds(connection, 1, 3)
            with connection.makefile() as text:
                found = json.load(text), files
    except (OSError, ValueError):
        found = None
    try:
        yield found
    finally:
        for file in files:
            os.close(file)


def _is_one_of_us(request: Mapping[str, Any]) -> bool:
    return request["python"] == sys.executable and request["session"] == os.getsid(0)


def _fits(environment: Mapping[str, str], free: frozenset[str]) -> bool:
    """Return True if imports in this environment would have been those of this process."""
    names = {*environment, *os.environ}
    return free.issuperset(name for name in names if environment.get(name) != os.environ.get(name))


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.setpgid(0, 0 if request["leads"] else request["group"])
    os.nice(request["nice"] - os.nice(0))
    OOM_SCORE.write_text(request["oom"])
    os.sched_setaffinity(0, request["cores"])
    for name, limits in request["limits"].items():
        resource.setrlimit(getattr(resource, name), tuple(limits))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # Python gives a child other random numbers; numpy does not.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _run(arguments: list[str]) -> None:
    """Do what `python SCRIPT ARGUMENT ...` does."""
    sys.argv = arguments
    main_module = ModuleType("__main__")
    main_module.__file__ = arguments[0]
    sys.modules["__main__"] = main_module
    SourceFileLoader("__main__", arguments[0]).exec_module(main_module)


if __name__ == "__main__":
    worker = main(sys.argv[1:])
    if worker is not None:
        _run(worker)

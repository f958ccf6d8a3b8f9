"""Starts a worker process of Ray's: has the template fork it, or starts Python for it.

Ray runs its own script for workers with variables of their own: it loads Ray, which takes half a second, and
then starts Python again. This one loads nothing, and leaves all that it does not know to Ray's. It is run by
its path, so it imports nothing of this package.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CONTEXT, LANGUAGE, OTHER_KIND = "--serialized-runtime-env-context=", "--language=", "--worker-type="
EMPTY: tuple[Any, ...] = (None, [], "")
TEMPLATE_VARIABLE = "RLINF_ASYNC_WORKER_TEMPLATE"
"""It holds the name of the template's socket; workers do not get it."""
RAYS_NAME = "setup_worker.py"
OOM_SCORE = Path("/proc/self/oom_score_adj")
GREETING, FORKED = b"?", b"!"


def command(arguments: list[str]) -> tuple[dict[str, str], list[str]] | None:
    """Return the variables to set, and the command of the worker process; None if Ray has to do it."""
    contexts = [word for word in arguments if word.startswith(CONTEXT)]
    languages = [word for word in arguments if word.startswith(LANGUAGE)]
    if len(contexts) > 1 or languages != [f"{LANGUAGE}PYTHON"]:
        return None
    rest = [word for word in arguments if word not in (*contexts, *languages)]
    if not contexts:
        return {}, [sys.executable, *rest]
    # Ray starts Python by way of bash, which would run the file in BASH_ENV.
    if "BASH_ENV" in os.environ:
        return None
    context = json.loads(contexts[0].removeprefix(CONTEXT))
    variables, python = context.pop("env_vars", {}), context.pop("py_executable", None) or sys.executable
    if any(value not in EMPTY for value in context.values()):
        return None
    # A profiler's command line is no file; and Ray replaces names of variables in values.
    if not Path(python).is_absolute() or not os.access(python, os.X_OK) or "$" in "".join(variables.values()):
        return None
    return variables, [python, *rest]


def forked(name: str, words: list[str]) -> bool:
    """Have the template fork the process of this command; False if there is none, and will be none."""
    if any(word.startswith(OTHER_KIND) for word in words):
        return False
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            # Without a deadline: the template may still import, the new process itself answers, and the end
            # of all who could is seen.
            connection.connect(f"\0{name}")
            # The name of a template that has ended is free for everybody.
            if account(connection) != os.getuid() or connection.recv(1) != GREETING:
                return False
            socket.send_fds(connection, [b" "], [0, 1, 2])
            connection.sendall(json.dumps(request(words)).encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1) == FORKED
    except OSError:
        return False


def account(connection: socket.socket) -> int:
    """Return the number of the account of the process at the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    number: int = struct.unpack("3i", credentials)[1]
    return number


def request(words: list[str]) -> dict[str, Any]:
    """Return the command with all that this process would pass on to it."""
    umask = os.umask(0)
    os.umask(umask)
    return {
        "python": words[0],
        "arguments": words[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "group": os.getpgrp(),
        "leads": os.getpgrp() == os.getpid(),
        "session": os.getsid(0),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "ignored": [
            number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
        ],
        "umask": umask,
        "nice": os.nice(0),
        # Ray raises it, so that a kernel without memory ends a worker before Ray or the driver.
        "oom": OOM_SCORE.read_text(),
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
    }


def rays_script() -> str:
    """Return the path of Ray's own script for this."""
    ray: Any = find_spec("ray")  # present, as it has started this process
    return str(Path(ray.origin).parent / "_private" / "workers" / RAYS_NAME)


if __name__ == "__main__":
    template = os.environ.pop(TEMPLATE_VARIABLE, None)
    found = command(sys.argv[1:])
    if found is None:
        os.execv(sys.executable, [sys.executable, rays_script(), *sys.argv[1:]])
    os.environ.update(found[0])
    if template is None or not forked(template, found[1]):
        os.execv(found[1][0], found[1])

"""The environment variables that choose a run's Ray cluster, the folder of its files, and its token.

`RAY_ADDRESS` names a cluster, or `local` for one of the run's own. Ray puts its sockets below a folder; the
path of a socket may have 107 bytes, and Ray needs 68 of these. A cluster that a run starts refuses processes
without the run's token, if the installed Ray has tokens.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlinf_async.extras import check_interpreter
from rlinf_async.observe.files import PRIVATE_MODE
from rlinf_async.ray_runtime.cluster.thread_room import short_of_files, short_of_threads

ADDRESS_VARIABLE = "RAY_ADDRESS"
ANSWER_TIMEOUT_S = 3.0
CLIENT_SCHEME = "ray://"
"""The beginning of the address of a cluster's server for Ray's clients."""
UNNAMED_CLUSTERS = ("", "auto", "local")
"""Values of `RAY_ADDRESS` that name no cluster."""


def unanswered(environ: Mapping[str, str]) -> str | None:
    """Return why the cluster at `RAY_ADDRESS` cannot be joined; None if it answers, or none is named.

    Ray itself would try for half a minute or more, and then fail with forty lines.
    """
    address = environ.get(ADDRESS_VARIABLE, "")
    place = address.removeprefix(CLIENT_SCHEME)
    if address in UNNAMED_CLUSTERS or "://" in place:
        return None
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        return f"RAY_ADDRESS={address} is no address of a cluster, such as 10.0.0.1:6379"
    why = connection_error(place)
    return None if why is None else f"nothing answers at RAY_ADDRESS={address} ({why})"


def connection_error(address: str) -> str | None:
    """Return why nothing answers at the `host:port` of a cluster's store, in a few words; None if it
    answers.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_TIMEOUT_S).close()
    except (OSError, OverflowError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def choose_cluster(*, own: bool, join: bool, environ: MutableMapping[str, str]) -> None:
    """Have `ray.init` start a cluster of the run's own, unless `environ` or `join` says otherwise.

    By default Ray joins any cluster that runs on the machine, and the run then waits for resources that other
    runs hold. `own`: True if the run can have a cluster of its own.

    Raises:
        ValueError: nothing answers at the address in `environ`, the address contradicts `join`, Ray cannot
            make sockets in the folder for its files, there is no room for its threads, or Python cannot
            import Ray.
    """
    check_interpreter()
    if join and environ.get(ADDRESS_VARIABLE) == "local":
        raise ValueError(
            f"--join, but {ADDRESS_VARIABLE}=local asks for a cluster of the run's own; "
            f"unset {ADDRESS_VARIABLE}"
        )
    if own and not join:
        environ[ADDRESS_VARIABLE] = environ.get(ADDRESS_VARIABLE) or "local"
    if own and environ.get(ADDRESS_VARIABLE) == "local" and (problem := misplaced_sockets(environ)):
        raise ValueError(f"{problem}; {SHORT_FOLDER_REMEDY}")
    if own and is_chosen(environ) and (problem := short_of_files() or short_of_threads()):
        raise ValueError(problem)
    if problem := unanswered(environ):
        raise ValueError(f"{problem}; start that cluster, or use RAY_ADDRESS=local for one of the run's own")


def is_chosen(environ: Mapping[str, str]) -> bool:
    """Return True if `environ` says that `ray.init` starts a cluster of the run's own."""
    return environ.get(ADDRESS_VARIABLE) == "local"


LONGEST_PATH = 107
"""The most bytes that the path of a socket may have on Linux."""
LONGEST_NAME = len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""The most bytes that Ray appends to the folder: the name has the longest process number."""
LONGEST_FOLDER = LONGEST_PATH - LONGEST_NAME
LEAST_ROOM_BYTES = 2**20
"""Ray cannot start with less: its processes wait for files that others cannot write, for minutes."""
SHORT_FOLDER_REMEDY = "export RAY_TMPDIR=/tmp"


def folder_of_ray(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the folder for the files of a Ray that starts here, and the variable that names it."""
    for variable in ("RAY_TMPDIR", "TMPDIR"):
        if variable in environ:
            return environ[variable], variable
    return "/tmp", "TMPDIR"


def logs_of_ray(environ: Mapping[str, str]) -> str:
    """Return where the logs of the run's Ray are, in words: those of a cluster that the run has joined are on
    its nodes, where this process cannot look.
    """
    if is_chosen(environ):
        return str(Path(folder_of_ray(environ)[0], "ray", "session_latest", "logs"))
    return "session_latest/logs in the folder of Ray on its node, usually /tmp/ray"


def misplaced_sockets(environ: Mapping[str, str]) -> str | None:
    """Return why a Ray that starts here cannot make its sockets; None if it can. Ray's own error has 70
    lines.
    """
    folder, variable = folder_of_ray(environ)
    if not folder.isascii():
        return f"{variable}={folder} has letters that are not ASCII, which Ray cannot read"
    size = len(folder.rstrip("/").encode())
    if size > LONGEST_FOLDER:
        return (
            f"{variable}={folder} has {size} characters, where Ray's sockets leave room for {LONGEST_FOLDER}"
        )
    # These functions, as `Path.exists` raises where this account may not look.
    if os.path.exists(folder) and not os.path.isdir(folder):
        return f"{variable}={folder} is no directory, and Ray puts its files there"
    path = Path(folder).absolute()
    # Ray makes a missing folder.
    there = next((each for each in (path, *path.parents) if os.path.exists(each)), path)
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{variable}={folder} cannot be written by this account, and Ray puts its files there"
    if (free := shutil.disk_usage(there).free) < LEAST_ROOM_BYTES:
        return f"{variable}={folder} has room for {free} bytes, and Ray puts its files there"
    return None


MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
TOKEN_VARIABLES = (MODE_VARIABLE, "RAY_AUTH_TOKEN", TOKEN_PATH_VARIABLE)
"""The variables with which users configure Ray's tokens themselves."""
TOKEN_BYTES = 32
AUTH_MODULE = "ray._private.authentication"


def require_token(environ: MutableMapping[str, str], *, shared: bool = False) -> bool:
    """Have a cluster that this process is about to start refuse processes without its token.

    The new token is in a memory file of this process, which has no name in any folder and ends with the
    process. Ray's processes inherit `environ` and read the token through `/proc`; only the same account can.
    With `shared`, Ray uses the account's token in Ray's own place, and `ray get-auth-token` shows it.

    Returns:
        True if a token was set; False if `environ` sets one of `TOKEN_VARIABLES`, or Ray has no tokens.
    """
    if any(name in environ for name in TOKEN_VARIABLES) or not _has_tokens():
        return False
    environ[MODE_VARIABLE] = "token"
    if not shared:
        environ[TOKEN_PATH_VARIABLE] = _in_memory(secrets.token_hex(TOKEN_BYTES))
    _reread()
    return True


def _has_tokens() -> bool:
    return find_spec(AUTH_MODULE) is not None


def _in_memory(text: str) -> str:
    """Return the path of a new memory file with this text; it is open as long as the process lives."""
    file = os.memfd_create("rlinf-async-token", os.MFD_CLOEXEC)
    os.fchmod(file, PRIVATE_MODE)
    os.write(file, text.encode())
    return f"/proc/{os.getpid()}/fd/{file}"


def _reread() -> None:
    """Have Ray read its variables again: it read them when it was imported, and caches its token."""
    from ray import _raylet

    raylet: Any = _raylet  # a compiled module, which has no types
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()

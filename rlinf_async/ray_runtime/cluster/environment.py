"""The Ray cluster of a run, as environment variables choose it: which one, where its files are, who may join.

`RAY_ADDRESS` names a cluster, or `local` for one of the run's own. Ray puts its sockets below a folder, and
a path of a socket may have 107 bytes, of which Ray takes 68. A cluster that a run starts asks for a token of
this run, where the installed Ray has them.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlinf_async.observe.files import PRIVATE_MODE

ADDRESS_VARIABLE = "RAY_ADDRESS"
ANSWER_TIMEOUT_S = 3.0


def unanswered(environ: Mapping[str, str]) -> str | None:
    """Why the cluster that `RAY_ADDRESS` names cannot be joined; None if it answers, or none is named.

    Ray itself would ask for half a minute, and then say it in forty lines.
    """
    address = environ.get(ADDRESS_VARIABLE, "")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return None
    why = connection_error(address)
    return None if why is None else f"nothing answers at RAY_ADDRESS={address} ({why})"


def connection_error(address: str) -> str | None:
    """Why nothing answers at the `host:port` of a cluster's store, in a few words; None if it answers."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_TIMEOUT_S).close()
    except (OSError, OverflowError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None


def choose_cluster(*, own: bool, join: bool, environ: MutableMapping[str, str]) -> None:
    """Have `ray.init` start a cluster of the run's own, where the run can have one and is told nothing else.

    By itself Ray joins whatever cluster runs on the machine, and the run then waits for places that somebody
    else's processes have.

    Raises:
        ValueError: nothing answers at the address in `environ`, it says the contrary of `join`, or the folder
            that it names for Ray's files is one in which Ray cannot make sockets.
    """
    if join and environ.get(ADDRESS_VARIABLE) == "local":
        raise ValueError(
            f"--join, but {ADDRESS_VARIABLE}=local asks for a cluster of the run's own; "
            f"unset {ADDRESS_VARIABLE}"
        )
    if own and not join:
        environ[ADDRESS_VARIABLE] = environ.get(ADDRESS_VARIABLE) or "local"
    if own and environ.get(ADDRESS_VARIABLE) == "local" and (problem := misplaced_sockets(environ)):
        raise ValueError(f"{problem}; {SHORT_FOLDER_REMEDY}")
    if problem := unanswered(environ):
        raise ValueError(f"{problem}; start that cluster, or use RAY_ADDRESS=local for one of the run's own")


LONGEST_PATH = 107
"""Bytes of the path of a socket on Linux."""
LONGEST_NAME = len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Bytes that Ray puts after the folder, for the largest number of a process."""
LONGEST_FOLDER = LONGEST_PATH - LONGEST_NAME
SHORT_FOLDER_REMEDY = "export RAY_TMPDIR=/tmp"


def folder_of_ray(environ: Mapping[str, str]) -> tuple[str, str]:
    """The folder below which a Ray that starts here puts its files, and the variable that says so."""
    for variable in ("RAY_TMPDIR", "TMPDIR"):
        if variable in environ:
            return environ[variable], variable
    return "/tmp", "TMPDIR"


def misplaced_sockets(environ: Mapping[str, str]) -> str | None:
    """Why a Ray that starts here could not make its sockets; None if it can. Ray says it in 70 lines."""
    folder, variable = folder_of_ray(environ)
    if not folder.isascii():
        return f"{variable}={folder} has letters that are not ASCII, which Ray cannot read"
    size = len(folder.rstrip("/").encode())
    if size > LONGEST_FOLDER:
        return (
            f"{variable}={folder} has {size} characters, where Ray's sockets leave room for {LONGEST_FOLDER}"
        )
    if Path(folder).exists() and not Path(folder).is_dir():
        return f"{variable}={folder} is no directory, and Ray puts its files there"
    return None


MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
TOKEN_VARIABLES = (MODE_VARIABLE, "RAY_AUTH_TOKEN", TOKEN_PATH_VARIABLE)
"""The variables by which a user tells Ray how to ask for tokens, and for which."""
TOKEN_BYTES = 32
AUTH_MODULE = "ray._private.authentication"


def require_token(environ: MutableMapping[str, str], *, shared: bool = False) -> bool:
    """Have a cluster that this process is about to start refuse every process that lacks its token.

    A fresh token lies in a memory file of this process: it has no name in any folder and is gone with the
    process, and Ray's processes, which inherit `environ`, read it through `/proc`, as the same account may.
    With `shared` Ray keeps the token where it keeps the account's own, and `ray get-auth-token` shows it.

    Returns:
        True if a token was set; False where `environ` has such a variable already, or Ray has no tokens.
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
    """The path of a memory file with this text, which stays open as long as the process lives."""
    file = os.memfd_create("rlinf-async-token", os.MFD_CLOEXEC)
    os.fchmod(file, PRIVATE_MODE)
    os.write(file, text.encode())
    return f"/proc/{os.getpid()}/fd/{file}"


def _reread() -> None:
    """Ray has read its variables when it was imported, and a token that it has looked for it remembers."""
    from ray import _raylet

    raylet: Any = _raylet  # whose types do not name what is compiled
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()

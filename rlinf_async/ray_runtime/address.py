"""The Ray cluster of a run: the one that `RAY_ADDRESS` names, one of its own, or one that runs already."""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping

from rlinf_async.ray_runtime.sockets import SHORT_FOLDER_REMEDY, misplaced_sockets

ADDRESS_VARIABLE = "RAY_ADDRESS"
PATIENCE_S = 3.0


def unanswered(environ: Mapping[str, str]) -> str | None:
    """Why the cluster that `RAY_ADDRESS` names cannot be joined; None if it answers, or none is named.

    Ray itself would ask for half a minute, and then say it in forty lines.
    """
    address = environ.get(ADDRESS_VARIABLE, "")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        return f"nothing answers at RAY_ADDRESS={address} ({getattr(error, 'strerror', None) or error})"
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

"""The Ray cluster that `RAY_ADDRESS` names."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

PATIENCE_S = 3.0


def unanswered(environ: Mapping[str, str]) -> str | None:
    """Why the cluster that `RAY_ADDRESS` names cannot be joined; None if it answers, or none is named.

    Ray itself would ask for half a minute, and then say it in forty lines.
    """
    address = environ.get("RAY_ADDRESS", "")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        return f"nothing answers at RAY_ADDRESS={address} ({getattr(error, 'strerror', None) or error})"
    return None


def check_address() -> None:
    """See that the cluster answers that this process would join.

    Raises:
        ValueError: it does not.
    """
    if problem := unanswered(os.environ):
        raise ValueError(f"{problem}; start that cluster, or use RAY_ADDRESS=local for one of the run's own")

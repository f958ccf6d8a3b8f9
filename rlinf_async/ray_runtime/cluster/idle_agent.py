"""Takes the place of Ray's dashboard agent in a cluster without a dashboard, and with the agent's arguments.

Ray's raylet waits for the agent's ports, and ends when the agent does. Ray's own imports what collects
metrics and logs, for seconds of CPU time, also where it then has no port. This one says that it has none, and
ends with the raylet. It is run by its path, so it imports nothing of this package.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""The beginnings of the names of Ray's files in the session's folder; each ends with the node's number."""
NONE = "-1"


def main(words: Sequence[str]) -> None:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    with suppress(ProcessLookupError):  # the raylet has ended
        raylet = os.pidfd_open(int(os.environ["RAY_RAYLET_PID"]))
        for name in PORTS:
            file = Path(given["--session-dir"], f"{name}_{given['--node-id']}")
            whole = file.with_name(f"{file.name}.{os.getpid()}")
            whole.write_text(NONE)
            whole.replace(file)
        select.select([raylet], [], [])


if __name__ == "__main__":
    main(sys.argv[1:])

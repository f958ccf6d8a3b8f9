"""Processes, and what a run says of them."""

import json
import subprocess
import sys
from contextlib import contextmanager

from rlinf_async.ray_runtime.inspection import machine

CHILD = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"]
PARENT = [sys.executable, "-c", "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()"]


def status(run_dir, processes, *, step=5, on=None, **facts):
    """`processes` by name, with their numbers; None for one that does not answer."""
    said = {
        name: None if pid is None else {"pid": pid, "machine": on or machine(), "open": [], "ended": 0}
        for name, pid in processes.items()
    }
    text = json.dumps({"step": step, "total": 9, "driver": 1, "still_s": 0.0, "processes": said, **facts})
    draft = run_dir / "status.draft"
    draft.write_text(text)
    draft.replace(run_dir / "status.json")


@contextmanager
def started(command):
    """A process, or one with a child, that has started to run."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate()

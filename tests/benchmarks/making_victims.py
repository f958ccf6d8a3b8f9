"""Processes, and what a run says of them."""

import json
import subprocess
import sys
from contextlib import contextmanager
from types import MappingProxyType

from rlinf_async.observe.spans import identity
from rlinf_async.wire.memory import machine

CHILD = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"]
OF_RUN = """
import sys
from pathlib import Path
from rlinf_async.observe.stacks import answer_for_stacks

answer_for_stacks(Path(sys.argv[1]), "a process")
print("ready", flush=True)
sys.stdin.read()
"""
PARENT = [sys.executable, "-c", "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()"]


def status(run_dir, processes, *, step=5, on=None, says=MappingProxyType({}), **facts):
    """`processes` by name, with their numbers; None for one that does not answer. Each `says` so, too."""
    said = {
        name: None
        if pid is None
        else {"pid": pid, "machine": on or machine(), "open": [], "ended": 0, **(identity(pid) or {}), **says}
        for name, pid in processes.items()
    }
    text = json.dumps(
        {"time": 0.0, "step": step, "total": 9, "driver": 1, "still_s": 0.0, "processes": said, **facts}
    )
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


def started_in(run_dir, *children):
    """A process of the run in `run_dir`, perhaps with a child of its own that runs a command."""
    code = OF_RUN.replace("print(", "import subprocess; subprocess.Popen(sys.argv[2:])\nprint(", 1)
    return started([sys.executable, "-c", code if children else OF_RUN, str(run_dir), *children])

"""A template of Ray's workers without Ray: what is started where Ray's raylet would start a worker."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

from rlinf_async.ray_runtime.cluster import start_worker
from rlinf_async.ray_runtime.cluster.start_worker import TEMPLATE_VARIABLE
from rlinf_async.ray_runtime.cluster.template import (
    ASSIGNED,
    NO_VARIABLES,
    RAYLET_VARIABLE,
    Shared,
    Template,
)

WORKER = """
import json, os, random, sys
import numpy
from ray._raylet import WorkerID
drawn = [WorkerID.from_random().hex(), random.random(), numpy.random.random()]
about = {"arguments": sys.argv, "folder": os.getcwd(), "parent": os.getppid(), "drawn": drawn}
about |= {"early": "mailbox" in sys.modules, "main": __name__, "rank": os.environ.get("RANK")}
about |= {"template": os.environ.get("RLINF_ASYNC_WORKER_TEMPLATE")}
about |= {"oom": open("/proc/self/oom_score_adj").read()}
about |= {"modules": sorted(sys.modules)}
about |= {"files": sorted(os.listdir("/proc/self/fd"), key=int)}
print(json.dumps(about), flush=True)
"""
WAIT_S = 120


@contextmanager
def template(shared=None, of_all=NO_VARIABLES, *, serves=True, **parts):
    """A template, which serves this process as its raylet, and the name by which it is asked."""
    found = Template(shared or Shared(**parts), of_all)
    if serves:
        found.serve(os.getpid())
    with found.process:
        yield found.name, found.process
        found.end()


def worker_in(folder):
    """The script of a worker, which prints what it is."""
    path = folder / "worker.py"
    path.write_text(WORKER)
    return path


def started(worker, name, *, folder=None, **variables):
    """What a worker says that Ray's raylet has started."""
    said = subprocess.run(
        [sys.executable, start_worker.__file__, worker, "--language=PYTHON"],
        env={
            **os.environ,
            **ASSIGNED,
            RAYLET_VARIABLE: str(os.getpid()),
            TEMPLATE_VARIABLE: name,
            **variables,
        },
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        timeout=WAIT_S,
        check=True,
        preexec_fn=partial(start_worker.OOM_SCORE.write_text, "500"),  # as Ray does
    ).stdout
    return json.loads(said)

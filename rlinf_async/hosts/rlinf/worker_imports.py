"""What the processes of a run under RLinf import, for the template that they are forked from.

RLinf is imported as its workers do, which is not as a driver does (`imports.py`).
"""

from __future__ import annotations

import os
from importlib import import_module
from unittest.mock import patch

from rlinf_async.hosts.rlinf.imports import WORKER_NAME

PACKAGE = "rlinf_async"
MODULES = (
    f"{PACKAGE}.ray_runtime.processes.request_channel",
    f"{PACKAGE}.ray_runtime.processes.coordinator",
    f"{PACKAGE}.hosts.rlinf.env_worker",
    f"{PACKAGE}.hosts.rlinf.rollout_worker",
    f"{PACKAGE}.hosts.rlinf.actor_worker",
)

with patch.dict(os.environ, {WORKER_NAME: "template"}):
    for name in MODULES:
        import_module(name)

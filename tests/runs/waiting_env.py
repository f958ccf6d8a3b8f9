"""Emulated environments that start when the test says so."""

from __future__ import annotations

import os
from typing import Any

from rlinf_async.lab.emulated.env import EmulatedEnv

PIPE = "WAITING_PIPE"
"""The variable that names the pipe."""


class WaitingEnv(EmulatedEnv):
    """Its resets wait until a pipe is open for writing."""

    def reset(self, **keywords: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        with open(os.environ[PIPE], "rb"):
            return super().reset(**keywords)

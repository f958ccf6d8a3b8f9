"""One finding of the doctor, and the subprocess in which whatever could hang or crash is tried."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One finding: `fail` means that a run cannot work, `warn` that it may not work well."""

    name: str
    status: Status
    detail: str
    mend: str = ""


def probe(code: str, *, env: Mapping[str, str] | None = None, timeout: float = 120) -> str | None:
    """Runs `code` in a fresh interpreter; None when it succeeds, else the last line that it wrote."""
    # -P keeps the current folder off the path: a checkout there must not stand in for the installed package.
    command = [sys.executable, "-P", "-c", code]
    try:
        done = subprocess.run(
            command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:g} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"

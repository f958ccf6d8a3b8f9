"""Checks of the doctor that look at installed packages, or try code that could hang or crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from packaging.version import Version

from rlinf_async.observe.check import Check
from rlinf_async.observe.forking import forked


def probe(
    code: str, *, env: Mapping[str, str] | None = None, ground: Sequence[str] = (), timeout: float = 120
) -> str | None:
    """Run `code` in a process of its own; return None if it succeeds, else the last line of its errors."""
    return output_of(code, env=env, ground=ground, timeout=timeout)[1]


def output_of(
    code: str, *, env: Mapping[str, str] | None = None, ground: Sequence[str] = (), timeout: float = 120
) -> tuple[str, str | None]:
    """Run `code` in a process of its own; return its output and the result of `probe`.

    `ground` is code that only imports; within `shared_interpreter` probes share its imports.
    """
    try:
        process = forked(code, env=env or {}, ground=ground, timeout=timeout)
        process = process or _fresh(code, env or {}, timeout)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {timeout:g} s"
    if process.returncode == 0:
        return process.stdout, None
    lines = process.stderr.strip().splitlines()
    # The last line of a traceback is the error; a signal leaves none.
    return process.stdout, lines[-1] if lines else f"exit status {process.returncode}"


def _fresh(code: str, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    # -P keeps the current folder off the path: a checkout there must not stand in for the installed package.
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout)


def version(package: str) -> str | None:
    """Return the installed version of a distribution, without importing it; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: (2, 52, 0) for `2.52.0rc1`."""
    return Version(text).release


def check_range(
    package: str, installed: str | None, *, least: tuple[int, ...], below: tuple[int, ...]
) -> Check:
    """Check that `package` is installed with `least <= version < below`."""
    versions = f">={'.'.join(map(str, least))},<{'.'.join(map(str, below))}"
    remedy = f"pip install '{package}{versions}'"
    if installed is None:
        return Check(package, "fail", "not installed", remedy)
    if not least <= release(installed) < below:
        return Check(package, "fail", f"{installed}, where {versions} is needed", remedy)
    return Check(package, "ok", installed)

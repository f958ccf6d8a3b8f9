"""One finding of the doctor, and the subprocess that tries code which could hang or crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from packaging.version import Version

from rlinf_async.observe.forking import forked

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """One finding.

    `fail` means that a run cannot work, `warn` that it may not work well, `skip` that there was nothing to
    check, or that this check depends on one that has failed.
    """

    name: str
    status: Status
    detail: str
    mend: str = ""
    """The remedy: a command or a change; empty if nothing is wrong."""


def skipped(name: str, reason: str) -> Check:
    """Return the result of a check that was not made."""
    return Check(name, "skip", f"not tried: {reason}")


def without(failed: Sequence[Check], *names: str) -> list[Check]:
    """Return checks `names`, skipped because they depend on the `failed` ones and would only repeat them."""
    reason = f"it needs {', '.join(check.name for check in failed)}"
    return [skipped(name, reason) for name in names]


def failures(checks: Iterable[Check]) -> list[Check]:
    """Return the checks that have failed."""
    return [check for check in checks if check.status == "fail"]


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

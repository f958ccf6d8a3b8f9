"""One finding of the doctor, and the subprocess in which whatever could hang or crash is tried."""

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
    look at, or that another check has failed on which this one stands.
    """

    name: str
    status: Status
    detail: str
    mend: str = ""
    """The remedy: a command, or what to change; empty where nothing is wrong."""


def skipped(name: str, reason: str) -> Check:
    """A check that was not made."""
    return Check(name, "skip", f"not tried: {reason}")


def without(failed: Sequence[Check], *names: str) -> list[Check]:
    """Checks that were not made, because what they stand on has failed; they would only repeat it."""
    reason = f"it needs {', '.join(check.name for check in failed)}"
    return [skipped(name, reason) for name in names]


def failures(checks: Iterable[Check]) -> list[Check]:
    """Return the checks that have failed."""
    return [check for check in checks if check.status == "fail"]


def probe(
    code: str, *, env: Mapping[str, str] | None = None, ground: Sequence[str] = (), timeout: float = 120
) -> str | None:
    """Runs `code` in a process of its own; None when it succeeds, else the last line that it wrote."""
    return output_of(code, env=env, ground=ground, timeout=timeout)[1]


def output_of(
    code: str, *, env: Mapping[str, str] | None = None, ground: Sequence[str] = (), timeout: float = 120
) -> tuple[str, str | None]:
    """Return the output of `code` in a process of its own, and the verdict of `probe` on it.

    `ground` is code that only imports; within `shared_interpreter` probes share what it has imported.
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
    """The installed version of a distribution, without importing it; None when it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(text: str) -> tuple[int, ...]:
    """The numbers of a version: `2.52.0rc1` is (2, 52, 0)."""
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

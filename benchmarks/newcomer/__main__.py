"""Follow the README from a clone to a report that compares, and write down the seconds of each command.

    python -m benchmarks.newcomer

It clones this repository into a folder that it removes afterwards, with environments of its own. The commands
are those that the README has under "Compare it with RLinf's own loop", as they are written, in one shell.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.newcomer.readme import commands_of

ROOT = Path(__file__).parents[2]
RESULT = Path(__file__).with_name("result.json")


def follow(lines: list[str], clone: Path) -> list[dict[str, object]]:
    """Run `lines` in one shell in `clone`; each with its seconds.

    Raises:
        RuntimeError: one of them fails, with what it has printed last.
    """
    took = []
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    state = ""
    for line in lines:
        began = time.monotonic()
        # What a line leaves in the shell, such as an environment that is active, the next one finds there.
        shell = f"{state}\n{line}"
        done = subprocess.run(
            ["bash", "-e", "-c", shell],
            cwd=clone,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{line}: status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
        if line.startswith(("source ", "export ")):
            state += f"\n{line}"
        took.append({"command": line, "seconds": round(time.monotonic() - began, 1)})
        print(f"{took[-1]['seconds']:>7} s  {line}", flush=True)
    return took


def main() -> int:
    """Follow, and keep what it took in `result.json`."""
    place = Path(tempfile.mkdtemp())
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(place / "clone")], check=True)
        load = os.getloadavg()[0]
        took = follow(commands_of((place / "clone" / "README.md").read_text()), place / "clone")
        page = place / "clone" / "report.html"
        result = {
            "seconds": round(sum(float(str(one["seconds"])) for one in took), 1),
            "commands": took,
            "report_bytes": page.stat().st_size,
            "cores": len(os.sched_getaffinity(0)),
            "load_before": round(load, 1),
            "load_after": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        }
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        print(f"{result['seconds']:>7} s  altogether", flush=True)
    finally:
        shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())

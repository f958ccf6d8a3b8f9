"""A clean room: a fresh clone, and an environment without the packages and variables of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).parents[2]
SYSTEM_PATH = "/usr/bin:/bin"
PACKAGE_SOURCE_VARIABLE = re.compile(
    r"PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|CERT|PROXY|CONFIG_FILE)|TORCH_INDEX_URL|(https?|no)_proxy",
    re.I,
)
"""Names of variables that say where packages come from. The room keeps them, as a machine may reach packages
only by a mirror."""
PIP_CONFIG_FILES = (".config/pip/pip.conf", ".pip/pip.conf")
"""Paths of pip's configuration below the user's home; the room uses the file for the same reason."""
SUPPORTED_PYTHON_CODE = "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))"
BYTES_PER_BLOCK = 512


@dataclass(frozen=True)
class Room:
    """The folder of the clone, the user's home, and all environment variables."""

    clone: Path
    home: Path
    environment: Mapping[str, str]

    def follow(self, lines: Sequence[str]) -> list[dict[str, object]]:
        """Run `lines` in the clone as if in one shell; return each with its seconds.

        Raises:
            RuntimeError: a line fails; the message has the end of its output.
        """
        took: list[dict[str, object]] = []
        state = ""
        for line in lines:
            began = time.monotonic()
            # Every line has a shell of its own; `source` and `export` lines are repeated before later lines.
            done = subprocess.run(
                ["bash", "-e", "-c", f"{state}\n{line}"],
                cwd=self.clone,
                env=dict(self.environment),
                text=True,
                capture_output=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{line}: status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
            if line.startswith(("source ", "export ")):
                state += f"\n{line}"
            took.append({"command": line, "seconds": round(time.monotonic() - began, 1)})
        return took

    def output_of(self, code: str) -> str:
        """Run Python code in the environment that the README's commands have made, and return its output."""
        python = self.clone / ".venv" / "bin" / "python"
        return subprocess.run([python, "-c", code], text=True, capture_output=True, check=True).stdout.strip()


@contextmanager
def clean_room() -> Iterator[Room]:
    """Yield a room with a clone of the current commit, and remove it after the block."""
    place = Path(tempfile.mkdtemp(prefix="clean-room-"))
    try:
        clone, home = place / "clone", place / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "-q", str(REPOSITORY_ROOT), str(clone)], check=True)
        yield Room(
            clone,
            home,
            {"HOME": str(home), "PATH": SYSTEM_PATH, **python_of(SYSTEM_PATH), **sources(os.environ)},
        )
    finally:
        shutil.rmtree(place)


def sources(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of `variables` that say where packages come from, and the path of pip's configuration."""
    kept = {name: value for name, value in variables.items() if PACKAGE_SOURCE_VARIABLE.fullmatch(name)}
    for config in PIP_CONFIG_FILES:
        file = Path(variables.get("HOME", "/nowhere"), config)
        if file.is_file():
            kept.setdefault("PIP_CONFIG_FILE", str(file))
    return kept


def python_of(path: str) -> dict[str, str]:
    """Return no variables if `path` has a supported Python, otherwise `PYTHON` with this process's Python."""
    for name in ("python3.11", "python3.12", "python3.13", "python3"):
        found = shutil.which(name, path=path)
        if found and subprocess.run([found, "-c", SUPPORTED_PYTHON_CODE], check=False).returncode == 0:
            return {}
    return {
        "PYTHON": str(Path(sys.prefix if sys.prefix == sys.base_prefix else sys.base_prefix, "bin/python3"))
    }


def gigabytes(folder: Path) -> float:
    """Return the disk space of a folder in units of 10^9 bytes, rounded to a tenth; hard links count once."""
    files = {}
    for top, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(top, name))
            files[status.st_ino] = status.st_blocks
    return round(sum(files.values()) * BYTES_PER_BLOCK / 1e9, 1)

"""A clean room: a fresh clone, and an environment in which nothing of this machine helps."""

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

ROOT = Path(__file__).parents[2]
PATH = "/usr/bin:/bin"
SOURCES = re.compile(
    r"PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|CERT|PROXY|CONFIG_FILE)|TORCH_INDEX_URL|(https?|no)_proxy",
    re.I,
)
"""Variables that say from where packages come. They are kept: behind a mirror there is no other way."""
PIP_CONFIGS = (".config/pip/pip.conf", ".pip/pip.conf")
"""Where pip looks for its user's configuration, of which the same holds."""
SUPPORTED = "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))"
BYTES_PER_BLOCK = 512


@dataclass(frozen=True)
class Room:
    """The folder of the clone, that of the user, and the whole environment."""

    clone: Path
    home: Path
    environment: Mapping[str, str]

    def follow(self, lines: Sequence[str]) -> list[dict[str, object]]:
        """Run `lines` in one shell in the clone; each with its seconds.

        Raises:
            RuntimeError: one of them fails, with what it has printed last.
        """
        took: list[dict[str, object]] = []
        state = ""
        for line in lines:
            began = time.monotonic()
            # What a line leaves in the shell, such as an active environment, the next one finds there.
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

    def asked(self, code: str) -> str:
        """What a line of Python prints in the environment that the commands have made."""
        python = self.clone / ".venv" / "bin" / "python"
        return subprocess.run([python, "-c", code], text=True, capture_output=True, check=True).stdout.strip()


@contextmanager
def clean_room() -> Iterator[Room]:
    """A room with a clone of what is committed here, removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="clean-room-"))
    try:
        clone, home = place / "clone", place / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        yield Room(clone, home, {"HOME": str(home), "PATH": PATH, **python_of(PATH), **sources(os.environ)})
    finally:
        shutil.rmtree(place)


def sources(variables: Mapping[str, str]) -> dict[str, str]:
    """Of the variables of this process, those that say from where packages are fetched."""
    kept = {name: value for name, value in variables.items() if SOURCES.fullmatch(name)}
    for config in PIP_CONFIGS:
        file = Path(variables.get("HOME", "/nowhere"), config)
        if file.is_file():
            kept.setdefault("PIP_CONFIG_FILE", str(file))
    return kept


def python_of(path: str) -> dict[str, str]:
    """Nothing where the system has a Python that is supported; else a variable that names this one."""
    for name in ("python3.11", "python3.12", "python3.13", "python3"):
        found = shutil.which(name, path=path)
        if found and subprocess.run([found, "-c", SUPPORTED], check=False).returncode == 0:
            return {}
    return {
        "PYTHON": str(Path(sys.prefix if sys.prefix == sys.base_prefix else sys.base_prefix, "bin/python3"))
    }


def gigabytes(folder: Path) -> float:
    """What a folder takes on the disk, in units of 10^9 bytes, to a tenth."""
    files = {}
    for top, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(top, name))
            files[status.st_ino] = status.st_blocks
    return round(sum(files.values()) * BYTES_PER_BLOCK / 1e9, 1)

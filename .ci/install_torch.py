"""Installs packages of PyTorch's own index: for the CPU where this machine has no GPU of NVIDIA's.

    install_torch.py CONSTRAINTS PACKAGE...

pip's own index has the build for CUDA alone, which brings gigabytes of libraries. It is taken where there is
such a GPU, and where the index for the CPU does not give the packages. TORCH_INDEX_URL names any other index.
What has been chosen is said in one line. Dependencies are left to the next step: not all of their versions
are on that index.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
VARIABLE = "TORCH_INDEX_URL"
DEVICES = ("nvidia[0-9]*", "dxg")
"""What NVIDIA's driver makes in /dev for a GPU, on Linux and in Windows' Linux."""


def sources(index: str, *, has_gpu: bool) -> list[tuple[str, str]]:
    """Indexes to try in turn, "" for pip's own, each with the words that say why."""
    if index:
        return [(index, f"from {index}, by {VARIABLE}")]
    if has_gpu:
        return [("", f"for CUDA, as this machine has a GPU; {VARIABLE} names the index of another build")]
    return [
        (CPU_INDEX, f"for the CPU, as no NVIDIA GPU was found; {VARIABLE} names the index of another build"),
        (
            "",
            f"from pip's own index, as {CPU_INDEX} did not give it: built for CUDA, some 4 GB larger; "
            f"{VARIABLE} names another index",
        ),
    ]


def install(packages: Sequence[str], constraints: str, index: str, *, last: bool) -> bool:
    """Whether pip has installed them; what stood against the last source is shown."""
    own = ["--index-url", index] if index else []
    # One answer is enough where another source is left.
    patience = [] if last else ["--retries", "1", "--timeout", "15"]
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "-c", constraints]
    done = subprocess.run([*command, *patience, *own, *packages], capture_output=not last)
    return done.returncode == 0


def is_there(package: str, constraints: str) -> bool:
    """Whether the pinned release of a package is installed, of whatever build."""
    name, _, pinned = package.partition("==")
    pins = re.findall(rf"^{re.escape(name)}==([^\s;]+)", Path(constraints).read_text(), re.MULTILINE)
    try:
        return version(name).partition("+")[0] in [pinned or None, *pins]
    except PackageNotFoundError:
        return False


def main(constraints: str, *packages: str) -> int:
    packages = tuple(package for package in packages if not is_there(package, constraints))
    if not packages:
        return 0
    has_gpu = any(match for pattern in DEVICES for match in Path("/dev").glob(pattern))
    choices = sources(os.environ.get(VARIABLE, "").strip(), has_gpu=has_gpu)
    for index, words in choices:
        if install(packages, constraints, index, last=index == choices[-1][0]):
            names = [package.partition("==")[0] for package in packages]
            sys.stdout.write(" ".join([*(f"{name} {version(name)}" for name in names), words]) + "\n")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

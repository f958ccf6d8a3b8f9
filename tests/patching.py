"""For tests of patches: copies of an installed package, stock and patched, and code that runs on them."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rlinf_async.observe.forking import ForkingInterpreter

PATCHES = Path(__file__).parents[1] / "patches"
# That the package which is pinned has a fault changes with another version of it only.
SIDES = [pytest.param("stock", marks=pytest.mark.nightly), "patched"]
HEADINGS = ("Why", "How", "Upstream", "Remove when")


def patches_of(package: str) -> list[Path]:
    """The patches of a package, in the order in which they are applied."""
    return sorted((PATCHES / package).glob("*.patch"))


def copy_of(package: str, root: Path) -> Path:
    """`root`, which now holds a copy of the installed package."""
    installed = Path(importlib.util.find_spec(package).origin).parent
    shutil.copytree(installed, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def patched(package: str, root: Path) -> Path:
    """`root`, which now holds a copy of the installed package with its patches."""
    copy_of(package, root)
    for patch in patches_of(package):
        done = apply(patch, root)
        assert done.returncode == 0, f"{patch.name}: {done.stdout}{done.stderr}"
    return root


def apply(patch: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """Applies `patch` below `root` with patch(1), or with git where that is missing."""
    command = ["patch", "-p1", "--no-backup-if-mismatch", "--fuzz=0", "-i", str(patch)]
    if shutil.which("patch") is None:
        command = ["git", "apply", "--verbose", str(patch)]
    # A repository above `root` would make git look for the files there.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)


def check_form(patch: Path) -> None:
    """A patch is ready for upstream, and the ledger says why it is there and until when."""
    text = patch.read_text()
    assert re.search(r"^Subject: \[PATCH[^]]*\] (feat|fix|refactor|perf)(\(\w+\))?: ", text, re.MULTILINE)
    assert re.search(r"^Signed-off-by: .+ <.+@.+>$", text, re.MULTILINE)
    ledger = (PATCHES / "README.md").read_text()
    entry = ledger.partition(f"## {patch.parent.name}/{patch.name}")[2].partition("\n## ")[0]
    for heading in HEADINGS:
        assert f"**{heading}**" in entry


def run(code: str, *folders: Path, timeout_s: float = 300.0, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` where `folders` come before the installed packages on the path."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **env},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@contextmanager
def forks(imports: str) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """As `run`, and with `arguments`: in forks of one process per first folder, which has run `imports`."""
    with ExitStack() as stack:
        interpreters: dict[Path, ForkingInterpreter] = {}

        def run(
            code: str, folder: Path, *others: Path, arguments: Sequence[str] = (), **env: str
        ) -> subprocess.CompletedProcess[str]:
            if folder not in interpreters:
                interpreters[folder] = stack.enter_context(ForkingInterpreter())
            ground = (f"import sys; sys.path.insert(0, {str(folder)!r})", imports)
            begin = f"import sys; sys.path[:0] = {[*map(str, others)]}; sys.argv[1:] = {[*arguments]}"
            done = interpreters[folder].run(f"{begin}\n{code}", env=env, ground=ground, timeout=300)
            assert done is not None, "what is imported has started threads, so that nothing can be forked"
            return done

        yield run


def installed_plugin(folder: Path, group: str, *, value: str, source: str) -> Path:
    """`folder`, which is now installed as the package `throwaway` with one entry, `thrown`, in `group`."""
    (folder / "throwaway.py").write_text(source)
    info = folder / "throwaway-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: throwaway\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nthrown = {value}\n")
    return folder

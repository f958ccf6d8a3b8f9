"""Write checkpoints and run directories to a disk that is full or read-only, and to a removed directory.

    python -m benchmarks.chaos.places

The command mounts small file systems in memory. This needs root; run it in a mount namespace of its own:

    unshare --mount python -m benchmarks.chaos.places

Stated before the first run. A case of a checkpoint has passed if writing raises an `OSError` that says why,
the previous checkpoint is found and loads, no unfinished folder is left where it could have been removed, and
once there is room again, everything unfinished is tidied and the next checkpoint is written. A case of a run
of the local host has passed if the run's last line names the folder or file that cannot be written, and says
why.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from benchmarks.chaos import saving
from benchmarks.chaos.soak import SETTINGS_BY_HOST
from benchmarks.result_store import ResultStore
from rlinf_async.lab.process import OWN_CLUSTER, last_words, run_command
from rlinf_async.lab.table import markdown
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest, tidy, written_aside

RESULTS_FILE = Path(__file__).with_name("places.json")
STEP_COUNT = 200
EXPECTED_ERRNOS = (errno.ENOSPC, errno.EROFS, errno.ENOENT)


def mount(place: Path, options: str) -> None:
    """Mount a small file system in memory at `place`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def fill(place: Path) -> None:
    """Fill the file system of `place` up to its last megabyte."""
    free = shutil.disk_usage(place).free
    (place / "ballast").write_bytes(bytes(max(0, free - (1 << 20))))


def checkpoint(place: Path, spoil: Callable[[], None], mend: Callable[[], None]) -> dict[str, Any]:
    """Write a checkpoint, call `spoil` during a second one, which is to fail, and write a third after `mend`.

    Returns:
        The error, the state of the first checkpoint, unfinished folders, and the verdict.
    """
    parent = place / "checkpoints"
    _save(parent, 1, lambda: None)
    said = "nothing was raised"
    try:
        _save(parent, 2, spoil)
    except OSError as error:
        said = f"{type(error).__name__}: {error}"
    newest = find_newest(parent)
    kept = newest.folder is not None and newest.step == 1 and saving.loads(newest.folder)
    gone = not parent.exists()
    half = saving.left(parent) if parent.exists() and os.access(parent, os.W_OK) else []
    mend()
    _save(parent, 3, lambda: None)
    after = find_newest(parent)
    tidy(parent)
    again = after.step == 3 and after.folder is not None and saving.loads(after.folder)
    why = any(os.strerror(number) in said for number in EXPECTED_ERRNOS)
    return {
        "said": said.replace(str(place), "…"),
        "kept": "the directory has gone" if gone else "yes" if kept else "no",
        "left": half,
        "passed": why and (kept or gone) and not half and again and not saving.left(parent),
    }


def _save(parent: Path, step: int, in_the_midst: Callable[[], None]) -> None:
    with written_aside(parent / f"global_step_{step}", {}) as aside:
        in_the_midst()
        saving.write(aside, step)


def local_run(run_dir: Path, spoil: Callable[[], None] | None) -> dict[str, Any]:
    """Train on the local host, and call `spoil` after a tenth of the steps."""
    with TemporaryDirectory() as folder:
        log, done = Path(folder, "log"), Path(folder, "done")
        command = [sys.executable, "-m", "rlinf_async.cli", "train", *SETTINGS_BY_HOST["local"]]
        command += [f"run_dir={run_dir}", f"settings.batches={STEP_COUNT}"]
        watching = _call_after_steps(run_dir, spoil, done) if spoil else None
        status = run_command(command, log, environment=OWN_CLUSTER, deadline_s=600)
        done.touch()
        if watching:
            watching.join()
        said = last_words(log)
    named = str(run_dir.parent) in said and any(
        why in said for why in ("No space left", "Read-only", "does not exist", "No such file")
    )
    return {
        "status": status,
        "said": said.replace(str(run_dir.parent), "…"),
        "passed": bool(status) and named,
    }


def _call_after_steps(run_dir: Path, spoil: Callable[[], None], done: Path) -> Any:
    import threading
    import time

    def watch() -> None:
        while len(RunReader(run_dir).metrics()) < STEP_COUNT // 10 and not done.exists():
            time.sleep(0.1)
        spoil()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def cases(root: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cases by name; each mounts a file system of its own below `root`."""

    def at(name: str, options: str) -> Path:
        place = root / name
        place.mkdir()
        mount(place, options)
        return place

    def full_checkpoint() -> dict[str, Any]:
        place = at("full", "size=200m")
        return checkpoint(place, lambda: fill(place), (place / "ballast").unlink)

    def read_only_checkpoint() -> dict[str, Any]:
        place = at("read-only", "size=200m")
        return checkpoint(place, lambda: remount(place, "ro"), lambda: remount(place, "rw"))

    def vanished_checkpoint() -> dict[str, Any]:
        place = at("vanished", "size=200m")
        return checkpoint(place, lambda: shutil.rmtree(place / "checkpoints"), lambda: None)

    def vanished_run() -> dict[str, Any]:
        place = at("vanished-run", "size=8m")
        return local_run(place / "run", lambda: shutil.rmtree(place / "run"))

    return {
        "a checkpoint, the disk is full": full_checkpoint,
        "a checkpoint, the disk is read-only": read_only_checkpoint,
        "a checkpoint, its directory vanishes": vanished_checkpoint,
        "a run, the disk is full": lambda: local_run(at("full-run", "size=64k") / "run", None),
        "a run, the disk is read-only": lambda: local_run(at("read-only-run", "ro,size=8m") / "run", None),
        "a run, its directory vanishes": vanished_run,
    }


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per case."""
    rows = [
        [name, f"`{found['said']}`", found.get("kept", "–"), "yes" if found["passed"] else "no"]
        for name, found in results.items()
    ]
    return markdown(["case", "last words", "the checkpoint before", "passed"], rows)


def main() -> None:
    """Run the missing cases, and print the table."""
    store = ResultStore(RESULTS_FILE)
    with TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            if name not in store.results:
                store.add(name, case())
        for place in Path(folder).iterdir():
            subprocess.run(["umount", str(place)], check=False)
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)

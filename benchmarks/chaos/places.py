"""Checkpoints and runs where the disk is full, read-only, or the directory has gone.

    python -m benchmarks.chaos.places

It mounts small file systems in memory, for which it has to be run as root, in a mount namespace of its own:

    unshare --mount python -m benchmarks.chaos.places

Stated before the first run. A checkpoint that cannot be written has passed if that raises an `OSError` which
says why, the one before is found and loads, nothing half written is left where it could have been removed,
and all of it is tidied and the next one is written once there is room again. A run of the local host has
passed if its last line names the place or the file that cannot be written, and says why.
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
from benchmarks.chaos.soak import SETTINGS
from benchmarks.kept import Kept
from rlinf_async.lab.process import OWN_CLUSTER, last_words, run_command
from rlinf_async.lab.table import markdown
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest, tidy, written_aside

RESULTS = Path(__file__).with_name("places.json")
STEPS = 200
WHY = (errno.ENOSPC, errno.EROFS, errno.ENOENT)


def mount(place: Path, options: str) -> None:
    """A small file system in memory at `place`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def fill(place: Path) -> None:
    """Use up what is free, but for a megabyte."""
    free = shutil.disk_usage(place).free
    (place / "ballast").write_bytes(bytes(max(0, free - (1 << 20))))


def checkpoint(place: Path, spoil: Callable[[], None], mend: Callable[[], None]) -> dict[str, Any]:
    """Write one checkpoint, fail to write another after or in the midst of which `spoil` is called, and a
    third after `mend`."""
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
    why = any(os.strerror(number) in said for number in WHY)
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
    """Train on the local host, and have `spoil` called when some steps are done."""
    with TemporaryDirectory() as folder:
        log, done = Path(folder, "log"), Path(folder, "done")
        command = [sys.executable, "-m", "rlinf_async.cli", "train", *SETTINGS["local"]]
        command += [f"run_dir={run_dir}", f"settings.batches={STEPS}"]
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
        while len(RunDir(run_dir).read_metrics()) < STEPS // 10 and not done.exists():
            time.sleep(0.1)
        spoil()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def cases(root: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is tried, each in a file system of its own below `root`."""

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
    """A line per case."""
    rows = [
        [name, f"`{found['said']}`", found.get("kept", "–"), "yes" if found["passed"] else "no"]
        for name, found in results.items()
    ]
    return markdown(["case", "last words", "the checkpoint before", "passed"], rows)


def main() -> None:
    """Try what has not been tried, and print the table."""
    kept = Kept(RESULTS)
    with TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            if name not in kept.results:
                kept.add(name, case())
        for place in Path(folder).iterdir():
            subprocess.run(["umount", str(place)], check=False)
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)

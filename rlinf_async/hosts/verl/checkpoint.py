"""Checkpoints in veRL's layout: `global_step_N/actor`, with our own files in `global_step_N`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlinf_async.observe.attempt import Attempt
from rlinf_async.observe.claim import claim_directory
from rlinf_async.observe.files import write_whole
from rlinf_async.observe.read_files import read_named
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import (
    LIST_FILE,
    find_newest,
    newest_sequence,
    problem_of,
    step_of,
    tidy,
)

LATEST_STEP_FILE = "latest_checkpointed_iteration.txt"
"""veRL's file with the step of the newest checkpoint."""
MAX_LATEST_BYTES = 100


def claim(config: DictConfig) -> None:
    """Claim the run directory and, if the run saves checkpoints, their folder; announce both to `supervise`.

    Runs that save no checkpoints may share that folder.

    Raises:
        ValueError: another run has claimed one of them.
    """
    claim_directory(Path(config.vla.run_dir), key="vla.run_dir")
    if (config.trainer.save_freq or 0) > 0:
        claim_directory(folder_of(config), key="trainer.default_local_dir")
        # After the claim, as `tidy` would remove a checkpoint that another run is writing.
        tidy(folder_of(config))
    run_dir = Path(config.vla.run_dir).absolute()
    Attempt(
        run_dir=str(run_dir),
        checkpoints=str(folder_of(config)),
        resume="trainer.resume_mode=auto",
        newest=newest_sequence(folder_of(config)),
    ).announce()


def set_aside(config: DictConfig, *, goes_on: bool, say: Callable[[str], None]) -> None:
    """Move aside an earlier run's files in the run directory, before this run writes any."""
    RunDir(Path(config.vla.run_dir).absolute()).set_aside(goes_on=goes_on, say=say)


def folder_of(config: DictConfig) -> Path:
    """Return the folder of all checkpoints, absolute."""
    return Path(config.trainer.default_local_dir).absolute()


def step_folder(config: DictConfig, step: int) -> Path:
    """Return the folder of the checkpoint after `step`, absolute."""
    return folder_of(config) / f"global_step_{step}"


def note_latest(config: DictConfig, step: int) -> None:
    """Record, in veRL's file, that the checkpoint of `step` is complete and the newest."""
    write_whole(folder_of(config) / LATEST_STEP_FILE, str(step).encode(), private=False, flush=True)


def resume_point(
    config: DictConfig, *, say: Callable[[str], None] = lambda _: None
) -> tuple[Path | None, int]:
    """Return the checkpoint to resume from, and its step; (None, 0) for a run from scratch.

    With `trainer.resume_mode=auto` it is the newest whole one; `say` gets a remark on each damaged one. A
    checkpoint of veRL's own trainers, which has no list of its files, is used if veRL's file names it.

    Raises:
        ValueError: `trainer.resume_from_path` is not a checkpoint.
    """
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None, 0
    if trainer.resume_mode == "auto":
        return _newest(folder_of(config), say)
    folder = Path(str(trainer.resume_from_path)).absolute()
    # Checkpoints of veRL's own trainers have no list of files, and cannot be verified.
    problem = problem_of(folder) if (folder / LIST_FILE).exists() else None
    if why := why_no_checkpoint(trainer.resume_from_path) or (problem and _not_whole(folder, problem)):
        raise ValueError(why)
    return folder, step_of(folder) or 0


def beginning(config: DictConfig) -> str:
    """Return a text on where a run begins, for `explain`."""
    mode = config.trainer.resume_mode
    if mode == "disable":
        return f"anew: trainer.resume_mode={mode}"
    if mode == "resume_path":
        return f"after the checkpoint {config.trainer.resume_from_path}"
    folder, step = resume_point(config)
    if folder is None:
        return f"anew: trainer.resume_mode={mode} finds no checkpoint in {folder_of(config)}"
    return f"after step {step}, from {folder}; trainer.resume_mode=disable begins anew"


def why_no_checkpoint(path: Any) -> str:
    """Return the reason why a run cannot resume from `path`, judged by its name and folders; empty if it
    can.
    """
    if not isinstance(path, str):
        return (
            f"trainer.resume_from_path={path} names no checkpoint; name one, or use trainer.resume_mode=auto"
        )
    folder = Path(path).absolute()
    if step_of(folder) is None or not (folder / "actor").is_dir():
        return _not_whole(folder, "it must be a folder global_step_N with a folder actor")
    return ""


def _not_whole(folder: Path, problem: str) -> str:
    return (
        f"trainer.resume_from_path names {folder}, which is no whole checkpoint: {problem}; name another, or "
        "use trainer.resume_mode=disable"
    )


def _newest(parent: Path, say: Callable[[str], None]) -> tuple[Path | None, int]:
    # veRL's file first: `find_newest` ignores checkpoints without a list of files, such as veRL's own.
    latest = _latest(parent, say)
    if latest is not None:
        return latest, step_of(latest) or 0
    newest = find_newest(parent)
    for sentence in newest.skipped:
        say(sentence)
    return newest.folder, newest.step


def _latest(parent: Path, say: Callable[[str], None]) -> Path | None:
    """Return the folder that veRL's file names, if its checkpoint is of veRL's own trainers."""
    file = parent / LATEST_STEP_FILE
    try:
        text = read_named(file, limit=MAX_LATEST_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        say(f"{file} cannot be read: {error.strerror}")
        return None
    folder = parent / f"global_step_{text}"
    # Only digits: another text could lead out of the folder.
    if text.isdecimal() and (folder / "actor").is_dir():
        # A checkpoint of this package is left to `find_newest`, which verifies it and falls back on an older
        # one.
        return None if (folder / LIST_FILE).exists() else folder
    say(f"{file} names the step {text!r}, of which there is no checkpoint")
    return None

"""Checkpoints in veRL's layout: `global_step_N/actor`, with our own files in `global_step_N`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlinf_async.observe.attempt import Attempt, claim_directory
from rlinf_async.observe.files import read_named, write_whole
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
"""veRL's file that names the newest step."""
MAX_LATEST_BYTES = 100


def claim(config: DictConfig) -> None:
    """Be the only run that writes into the run directory, and the only one that saves into its
    checkpoints.

    `rlinf-async supervise` is told both. Runs that save nothing may share a place for checkpoints.

    Raises:
        ValueError: another run does.
    """
    claim_directory(Path(config.vla.run_dir), key="vla.run_dir")
    if (config.trainer.save_freq or 0) > 0:
        claim_directory(folder_of(config), key="trainer.default_local_dir")
        # After the claim: a run that still goes on would lose the checkpoint that it is writing.
        tidy(folder_of(config))
    run_dir = Path(config.vla.run_dir).absolute()
    Attempt(
        run_dir=str(run_dir),
        checkpoints=str(folder_of(config)),
        resume="trainer.resume_mode=auto",
        newest=newest_sequence(folder_of(config)),
    ).announce()


def set_aside(config: DictConfig, *, goes_on: bool, say: Callable[[str], None]) -> None:
    """Move aside the files that an earlier run has left in the run directory, before this run writes any."""
    RunDir(Path(config.vla.run_dir).absolute()).set_aside(goes_on=goes_on, say=say)


def folder_of(config: DictConfig) -> Path:
    """The folder of all checkpoints, absolute."""
    return Path(config.trainer.default_local_dir).absolute()


def step_folder(config: DictConfig, step: int) -> Path:
    """The folder of the checkpoint after `step`, absolute."""
    return folder_of(config) / f"global_step_{step}"


def note_latest(config: DictConfig, step: int) -> None:
    """Say that the checkpoint of `step` is complete and the newest."""
    write_whole(folder_of(config) / LATEST_STEP_FILE, str(step).encode(), private=False, flush=True)


def resume_point(
    config: DictConfig, *, say: Callable[[str], None] = lambda _: None
) -> tuple[Path | None, int]:
    """Return the checkpoint to go on from, and its step; (None, 0) for a run that begins from scratch.

    With `trainer.resume_mode=auto` it is the newest whole one; `say` is told of damaged ones. A checkpoint of
    veRL's own trainers, which has no list of its files, counts where it is veRL's latest.

    Raises:
        ValueError: `trainer.resume_from_path` is no checkpoint.
    """
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None, 0
    if trainer.resume_mode == "auto":
        return _newest(folder_of(config), say)
    folder = Path(str(trainer.resume_from_path)).absolute()
    # veRL's own trainers write no list of files by which a checkpoint could be judged.
    problem = problem_of(folder) if (folder / LIST_FILE).exists() else None
    if why := why_no_checkpoint(trainer.resume_from_path) or (problem and _not_whole(folder, problem)):
        raise ValueError(why)
    return folder, step_of(folder) or 0


def beginning(config: DictConfig) -> str:
    """Say where a run begins, for a reader."""
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
    """Why a run cannot go on from `path`, as far as its name and its folders tell; empty if it can."""
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
    # veRL's file goes first: `find_newest` sees no checkpoint without a list of files, and veRL writes none.
    latest = _latest(parent, say)
    if latest is not None:
        return latest, step_of(latest) or 0
    newest = find_newest(parent)
    for sentence in newest.skipped:
        say(sentence)
    return newest.folder, newest.step


def _latest(parent: Path, say: Callable[[str], None]) -> Path | None:
    """Return the folder that veRL's file names, if veRL has written it by itself."""
    file = parent / LATEST_STEP_FILE
    try:
        text = read_named(file, limit=MAX_LATEST_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        say(f"{file} cannot be read: {error.strerror}")
        return None
    folder = parent / f"global_step_{text}"
    # Digits alone: another text could lead out of the folder.
    if text.isdecimal() and (folder / "actor").is_dir():
        # One of this package is left to `find_newest`, which reads all of it and falls back on an older one.
        return None if (folder / LIST_FILE).exists() else folder
    say(f"{file} names the step {text!r}, of which there is no checkpoint")
    return None

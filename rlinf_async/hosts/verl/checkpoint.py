"""Where checkpoints are, in veRL's layout: `global_step_N/actor`, with what is ours beside `actor`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from rlinf_async.observe.attempt import Attempt
from rlinf_async.observe.claims import claim_directory
from rlinf_async.observe.files import read_named
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoint_folder import (
    LIST_FILE,
    find_newest,
    newest_sequence,
    problem_of,
    replace_text,
    step_of,
    tidy,
)

LATEST = "latest_checkpointed_iteration.txt"
"""veRL's file that names the newest step."""
MAX_LATEST_BYTES = 100


def claim(config: DictConfig) -> None:
    """Be the only run that writes into the run directory, and the only one that saves where this one does.

    Whoever would start the run again is told both. Runs that save nothing may have one place for checkpoints.

    Raises:
        ValueError: another does.
    """
    claim_directory(Path(config.vla.run_dir), key="vla.run_dir")
    if (config.trainer.save_freq or 0) > 0:
        claim_directory(folder_of(config), key="trainer.default_local_dir")
        tidy(folder_of(config))
    run_dir = Path(config.vla.run_dir).absolute()
    Attempt(
        run_dir=str(run_dir),
        checkpoints=str(folder_of(config)),
        resume="trainer.resume_mode=auto",
        newest=newest_sequence(folder_of(config)),
    ).announce()


def set_aside(config: DictConfig, *, goes_on: bool, say: Callable[[str], None]) -> None:
    """Put aside what an earlier run has left in the run directory, before anything of this one is written."""
    RunDir(Path(config.vla.run_dir).absolute()).set_aside(goes_on=goes_on, say=say)


def folder_of(config: DictConfig) -> Path:
    """The folder of all checkpoints, absolute."""
    return Path(config.trainer.default_local_dir).absolute()


def step_folder(config: DictConfig, step: int) -> Path:
    """The folder of the checkpoint after `step`, absolute."""
    return folder_of(config) / f"global_step_{step}"


def note_latest(config: DictConfig, step: int) -> None:
    """Say that the checkpoint of `step` is complete and the newest."""
    replace_text(folder_of(config) / LATEST, str(step))


def resumed(config: DictConfig, *, say: Callable[[str], None] = lambda _: None) -> tuple[Path | None, int]:
    """The checkpoint to go on from, and its step; (None, 0) for a run that begins anew.

    With `trainer.resume_mode=auto` it is the newest whole one; those that are not are named by `say`. One
    that veRL's own trainers have written, without a list of its files, counts where it is veRL's latest.

    Raises:
        ValueError: `trainer.resume_from_path` is no checkpoint.
    """
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None, 0
    if trainer.resume_mode == "auto":
        return _newest(folder_of(config), say)
    folder = Path(str(trainer.resume_from_path)).absolute()
    step = step_of(folder)
    if step is None or not (folder / "actor").is_dir():
        problem: str | None = "it must be a folder global_step_N with a folder actor"
    else:
        problem = problem_of(folder) if (folder / LIST_FILE).exists() else None
    if problem is not None or step is None:
        raise ValueError(
            f"trainer.resume_from_path names {folder}, which is no whole checkpoint: {problem}; name "
            "another, or use trainer.resume_mode=disable"
        )
    return folder, step


def _newest(parent: Path, say: Callable[[str], None]) -> tuple[Path | None, int]:
    latest = _latest(parent, say)
    if latest is not None:
        return latest, step_of(latest) or 0
    newest = find_newest(parent)
    for sentence in newest.skipped:
        say(sentence)
    return newest.folder, newest.step


def _latest(parent: Path, say: Callable[[str], None]) -> Path | None:
    """What veRL's file names, if veRL has written it by itself."""
    file = parent / LATEST
    try:
        text = read_named(file, limit=MAX_LATEST_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        say(f"{file} cannot be read: {error.strerror}")
        return None
    folder = parent / f"global_step_{text}"
    if text.isdecimal() and (folder / "actor").is_dir():
        return None if (folder / LIST_FILE).exists() else folder
    say(f"{file} names the step {text!r}, of which there is no checkpoint")
    return None

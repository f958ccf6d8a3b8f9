"""The folders of RLinf's checkpoints, and the choice of the checkpoint to resume from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rlinf_async.hosts.rlinf.settings import last_step
from rlinf_async.observe.attempt import Attempt, check_left
from rlinf_async.observe.claim import claim_directory
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import (
    LIST_FILE,
    find_newest,
    newest_sequence,
    problem_of,
    step_of,
    tidy,
)

AUTO_RESUME = "auto"


def checkpoints(cfg: DictConfig) -> Path:
    """Return the folder with a run's checkpoints, as in RLinf's runners."""
    logger = cfg.runner.logger
    return Path(logger.log_path) / logger.experiment_name / "checkpoints"


def take_place(cfg: DictConfig, *, active: bool, say: Callable[[str], None]) -> None:
    """Claim the run directory, find the checkpoint to resume from, and move aside files of earlier runs.

    Files are moved only for an `active` run, as RLinf's own runner writes no such records.

    Raises:
        ValueError: another run writes there, or there is no checkpoint to resume from.
        NothingLeftError: the checkpoint is of the last step, or of a later one.
    """
    run_dir = OmegaConf.select(cfg, "runner.logger.log_path")
    if run_dir is None:
        return
    # First: the code below reads and moves files that another run might be writing.
    claim_directory(Path(run_dir), key="runner.logger.log_path")
    automatic = cfg.runner.get("resume_dir") == AUTO_RESUME
    folder = checkpoints(cfg).absolute()
    if active:
        RunDir(Path(run_dir).absolute()).check_inside(folder)
    # Remove half-written checkpoints of a killed run; no other run writes here now. Only inside the claimed
    # directory: `experiment_name` may lead out of it.
    if folder.resolve().is_relative_to(Path(run_dir).resolve()):
        tidy(folder)
    for remark in resolve_resume(cfg):
        say(remark)
    # Without digests: `resolve_resume` has already read the files of this checkpoint, maybe gigabytes.
    step = resume_step(cfg.runner.get("resume_dir"), digests=False)
    if step and cfg.runner.get("max_epochs") is not None:
        key, steps = last_step(cfg.runner)
        check_left(step, steps, key=key, automatic=automatic)
    if active:
        set_aside(cfg, say)
    resume = f"++runner.resume_dir={AUTO_RESUME}"
    Attempt(
        run_dir=str(Path(run_dir).absolute()),
        checkpoints=str(folder),
        resume=resume,
        newest=newest_sequence(folder),
    ).announce()


def set_aside(cfg: DictConfig, say: Callable[[str], None]) -> None:
    """Move aside the files of an earlier run in this run's directory, before this run begins."""
    run_dir = Path(cfg.runner.logger.log_path).absolute()
    resume_dir = cfg.runner.get("resume_dir")
    goes_on = bool(resume_dir) and Path(resume_dir).resolve().is_relative_to(run_dir.resolve())
    RunDir(run_dir).set_aside(goes_on=goes_on, weights=checkpoints(cfg).absolute(), say=say)


def resolve_resume(cfg: DictConfig) -> list[str]:
    """Replace `runner.resume_dir=auto` by the newest whole checkpoint, and return remarks for the user.

    Raises:
        ValueError: a run cannot resume from the folder in `runner.resume_dir`.
    """
    parent = checkpoints(cfg)
    resume_dir = cfg.runner.get("resume_dir")
    if resume_dir != AUTO_RESUME:
        resume_step(resume_dir)
        return []
    newest = find_newest(parent)
    cfg.runner.resume_dir = str(newest.folder) if newest.folder else None
    nothing = f"runner.resume_dir=auto: there is no whole checkpoint in {parent}, so the run begins anew"
    return [*newest.skipped, f"runner.resume_dir={newest.folder}" if newest.folder else nothing]


def resume_step(directory: str | None, *, digests: bool = True) -> int:
    """Return the step of the checkpoint `runner.resume_dir` (`.../global_step_N`); 0 without one.

    Without `digests` its files are not read, for a checkpoint that this process has verified before.

    Raises:
        ValueError: the directory does not end in `global_step_N`, has no actor checkpoint, or is a checkpoint
            of this package that is not whole.
    """
    if not directory:
        return 0
    folder = Path(directory)
    step = step_of(folder)
    if step is None:
        raise ValueError(f"runner.resume_dir={directory!r} must end in global_step_N, or be auto")
    if not (folder / "actor").is_dir():
        raise ValueError(f"runner.resume_dir={directory!r} has no directory actor")
    # Checkpoints of RLinf's own runner have no list of files, and cannot be verified.
    if (folder / LIST_FILE).exists() and (problem := problem_of(folder, digests=digests)) is not None:
        raise ValueError(
            f"runner.resume_dir={directory!r} is not whole: {problem}; runner.resume_dir=auto takes the "
            "newest that is"
        )
    return step

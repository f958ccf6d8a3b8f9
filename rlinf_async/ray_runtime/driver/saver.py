"""Writes checkpoints during a run: whole or not at all; a failed one does not end the run at once."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import ray

from rlinf_async import __version__
from rlinf_async.core.restarts import MAX_FAILED_SAVES, save_wait_s
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.ending import full_disk, short
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest, prune, written_aside
from rlinf_async.ray_runtime.checkpoints.other_rates import RATES_FACT
from rlinf_async.ray_runtime.checkpoints.saved_buffer import ProcessKnowledge
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker

FULL_DISK_BYTES = 1 << 20
"""A disk with fewer free bytes counts as full, whatever an error says."""
PEER_SAVE_TIMEOUT_S = 60.0
"""Seconds that other learner ranks may still write after one has failed; later they count as waiting for
it."""


class SaveError(RuntimeError):
    """A checkpoint could not be written; the message names the process and the reason."""


class NoRoom(SaveError):
    """The disk has less room than the last checkpoint took."""


class SaveHooks(Protocol):
    """A framework's part of a checkpoint."""

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after `step`: `.../global_step_N`."""

    def save(self, step: int, folder: Path) -> None:
        """Write the framework's own files into `folder`, which will be renamed.

        Raises:
            SaveError, OSError: the files cannot be written.
        """

    def saved(self, step: int, folder: Path) -> None:
        """Called when the checkpoint after `step` is whole, and has its name."""


class Saver:
    """Writes checkpoints and removes old ones; fails after `MAX_FAILED_SAVES` failures in a row."""

    def __init__(
        self,
        fleet: Fleet,
        settings: RunSettings,
        hooks: SaveHooks,
        run_dir: Path,
        *,
        rate_settings: Mapping[str, Any],
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._fleet, self._hooks, self._run_dir, self._say = fleet, hooks, run_dir, say
        self._keep_count = settings.asynchrony.advanced.keep_checkpoints
        self._rate_settings = dict(rate_settings)
        self.go_on(settings)
        self._now, self._wait = now, wait
        self._first_failed_at = self._next_try_at = 0.0
        self._bytes = 0
        self._written: set[Path] = set()
        """Checkpoints that this process has written, and need not verify before an older one is removed."""
        self.saved: int | None = None
        """The step of the last checkpoint that was written."""
        self.failed = 0
        """The number of failed tries since then."""

    def go_on(self, settings: RunSettings) -> None:
        """Write checkpoints of a run with `settings` from now on."""
        self._settings = settings
        self._facts = {
            "rlinf_async": __version__,
            "plan": asdict(settings.plan),
            "max_staleness": settings.asynchrony.max_staleness,
            RATES_FACT: self._rate_settings,
        }

    def save(self, step: int, *, last: bool = False, before: Callable[[], None] = lambda: None) -> bool:
        """Write the checkpoint after `step`; return True if it has been written.

        After a failure the run goes on, and a checkpoint that is due before the next try is left out; the
        `last` one of the run is tried again until it is written. `before` is called when all files are
        written, before the checkpoint has its name.

        Raises:
            SaveError: the `MAX_FAILED_SAVES`th try in a row has failed.
        """
        if self._now() < self._next_try_at and not last:
            return False
        while not self._try(step, before):
            if not last:
                return False
            self._wait(self._next_try_at - self._now())
        return True

    def _try(self, step: int, before: Callable[[], None]) -> bool:
        folder = self._hooks.checkpoint(step)
        try:
            self._write(step, folder, before)
            self._hooks.saved(step, folder)
        except (OSError, SaveError) as error:
            self._note_failure(step, error, folder.parent)
            return False
        self.saved, self.failed, self._next_try_at = step, 0, 0.0
        self._written.add(folder)
        self._prune(folder.parent)
        return True

    def _prune(self, parent: Path) -> None:
        """Remove old checkpoints; a failure is only reported, as the new checkpoint is written."""
        try:
            old_folders = prune(parent, self._keep_count, written=self._written)
        except OSError as error:
            why = error.strerror or error
            self._say(f"an old checkpoint in {parent} cannot be removed: {why}; it is tried again later")
            return
        for old in old_folders:
            self._written.discard(old)
            self._say(f"removed {old}: async.advanced.keep_checkpoints={self._keep_count}")

    def _write(self, step: int, folder: Path, before: Callable[[], None]) -> None:
        with written_aside(folder, self._facts, before=before) as aside:
            # Before anything is written: learner ranks write together, and may hang when one of them fails.
            self._check_room(aside)
            self._hooks.save(step, aside)
            self._raise_errors(
                "coordinator", self._fleet.run("coordinator", Coordinator.save_buffer, str(aside))
            )
            # After the buffer, as it is written into the buffer's folder.
            self._read_knowledge(step).write(aside)
            self._bytes = _bytes_of(aside)

    def resume_known(self, folder: Path, rollouts: frozenset[tuple[int, str]]) -> None:
        """Give processes the saved knowledge of the interrupted run's processes; see `ProcessKnowledge`.

        `rollouts` are the rollouts that are in the buffer again: `saved_buffer.Resumed.rollouts`.
        """
        record = ProcessKnowledge.read(folder)
        self._fleet.run("env", ShardWorker.resume_episodes, record.rollouts, rollouts)
        self._fleet.run("learner", LearnerRank.resume_premise, record.premise)

    def _read_knowledge(self, step: int) -> ProcessKnowledge:
        # All batches that may have rollouts by now: the gate admits none for later batches.
        batches = range(step, step + self._settings.asynchrony.max_staleness + 1)
        rollouts = self._fleet.run_on_living("env", ShardWorker.read_episodes, batches)
        premise = self._fleet.run("learner", LearnerRank.known_premise)[0]
        return ProcessKnowledge([rollout or {} for rollout in rollouts], premise)

    def save_learners(self, *arguments: object) -> None:
        """Have every learner rank write its part, by the framework's own `save_checkpoint`.

        Raises:
            SaveError: a rank could not write its part.
        """
        calls = self._fleet.call("learner", LearnerRank.try_to_save, *arguments)
        purpose = "save_checkpoint on the learner workers"
        pending = list(calls)
        while pending:
            self._fleet.first(pending, purpose)
            ready = [call for call in pending if self._fleet.ended([call], 0)]
            pending = [call for call in pending if call not in ready]
            has_failure = any(error is not None for error in self._fleet.wait(ready, purpose))
            if has_failure and pending and not self._fleet.ended(pending, PEER_SAVE_TIMEOUT_S):
                # The failed rank would go on with the next batch while the others wait for it in this save.
                raise RuntimeError(f"{_in_words('learner', ray.get(ready))}, and the other ranks wait for it")
        self._raise_errors("learner", self._fleet.wait(calls, purpose))

    @staticmethod
    def _raise_errors(group: str, errors: Sequence[str | None]) -> None:
        if any(error is not None for error in errors):
            raise SaveError(_in_words(group, errors))

    def _check_room(self, aside: Path) -> None:
        need = self._bytes or _bytes_of(find_newest(aside.parent, digests=False).folder)
        free = shutil.disk_usage(aside).free
        if free < need:
            raise NoRoom(
                f"{aside.parent} has {free / 1e9:.3g} GB left, and the checkpoint before took "
                f"{need / 1e9:.3g} GB"
            )

    def _note_failure(self, step: int, error: BaseException, parent: Path) -> None:
        now = self._now()
        self._first_failed_at = now if not self.failed else self._first_failed_at
        self.failed += 1
        ends, wait_s = self.failed >= MAX_FAILED_SAVES, save_wait_s(self.failed)
        self._next_try_at = now + wait_s
        goes_on = f"the run goes on, and tries again in {wait_s:g} s at the earliest"
        action = "the run ends" if ends else goes_on
        message = f"the checkpoint after step {step} could not be written: {_why(error, parent)}"
        fault = Fault(process="driver", what="save failed", error=message, action=action)
        RunDir(self._run_dir).record(fault)
        if ends:
            took = f"{now - self._first_failed_at:.0f} s"
            raise SaveError(f"{message} (tried {self.failed} times in {took})") from error
        self._say(
            f"{message}; {action} ({self.failed} of {MAX_FAILED_SAVES} failures in a row that end the run)"
        )


def _why(error: BaseException, parent: Path) -> str:
    """Return the reason why writing into `parent` has failed, in a sentence.

    Libraries report a full disk in words of their own, such as `unexpected pos 64 vs 0`: so the free space is
    checked as well.
    """
    free = None
    with suppress(OSError):
        free = shutil.disk_usage(parent).free
    says_so = full_disk(error) is not None or os.strerror(errno.ENOSPC).lower() in str(error).lower()
    if isinstance(error, NoRoom) or not (says_so or (free is not None and free < FULL_DISK_BYTES)):
        return short(str(error))
    left = "" if free is None else f" ({free / 1e6:.0f} MB are free)"
    return f"no space is left on {parent}{left}"


def _in_words(group: str, errors: Sequence[str | None]) -> str:
    return "; ".join(f"{group} {rank}: {error}" for rank, error in enumerate(errors) if error is not None)


def _bytes_of(folder: Path | None) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder else 0

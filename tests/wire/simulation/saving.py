"""Checkpoints on a disk that is full at times and crashes, drawn from a seed, and what is found then."""

import errno
import os
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.lab.virtual.clock import run
from rlinf_async.ray_runtime.checkpoints import checkpoint_folder, saved_buffer
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest, tidy
from rlinf_async.ray_runtime.checkpoints.saved_buffer import ProcessKnowledge
from rlinf_async.ray_runtime.driver import saver as saver_module
from rlinf_async.ray_runtime.driver.saver import SaveError, Saver
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank
from tests.making import plan, rollout, run_settings
from tests.wire.simulation.disk import Crash, Disk

BATCHES = 4


class InTurn:
    """Fills `ThreadPoolExecutor`: what is done at once is done in one order."""

    def __init__(self, _):
        pass

    def __enter__(self):
        return SimpleNamespace(map=map)

    def __exit__(self, *_):
        pass


@dataclass
class Found:
    """What a schedule came to."""

    crashes: int = 0
    full: int = 0
    """Saves that have failed."""
    saved: int = 0
    replaced: int = 0
    changes: int = 0
    given_up: int = 0

    def counts(self):
        return vars(self)


class SavingSchedule:
    """A run that saves, crashes, is resumed from what it finds, and saves again; drawn from `seed`."""

    def __init__(self, seed):
        self.seed, self.rng, self.out = seed, random.Random(seed), Found()
        draw = self.rng.choice
        self.keep, self.pieces = draw((1, 2, "all")), draw((0, 1, 2))
        self.saved = 0
        """The newest checkpoint that the run was told is there."""
        self.lives = draw((1, 2, 2, 3))

    def __str__(self):
        return f"seed={self.seed}, keep={self.keep}, pieces={self.pieces}, lives={self.lives}"

    def play(self):
        """Raises what goes wrong, with a command that replays it; what was `Found`."""
        folder = Path(tempfile.mkdtemp(prefix="rlinf-async-disk-"))
        try:
            root = folder / "0"
            root.mkdir()
            for life in range(self.lives):
                last = life == self.lives - 1
                root = self._live(root, folder / str(life + 1), crashes=not last or self.rng.random() < 0.7)
                self._check(root)
        except BaseException as error:
            error.add_note(f"python -m tests.wire.simulation --disk {self.seed}")
            raise
        finally:
            shutil.rmtree(folder)
        return self.out

    def _live(self, root, image, *, crashes):
        """One life of a run; the folder that is left when it has ended."""
        full_from = self.rng.randint(1, 80) if self.rng.random() < 0.3 else 10**6
        self.disk = Disk(
            root,
            self.rng,
            crash_at=self.rng.randint(1, 90) if crashes else 0,
            full=range(full_from, full_from + self.rng.choice((1, 1, 5, 40))),
        )
        checkpoints = self.checkpoints = root / "run" / "checkpoints"
        self.clock = 0.0
        step = find_newest(checkpoints).step
        try:
            with (
                self.disk.watching(saved_buffer),
                mock.patch.object(checkpoint_folder, "ThreadPoolExecutor", InTurn),
            ):
                tidy(checkpoints)
                self._train(step)
        except Crash:
            self.out.crashes += 1
            image.mkdir()
            self.disk.write_image(image)
            return image
        finally:
            self.out.changes += self.disk.changes
        return root

    def _train(self, step):
        asynchrony = AsyncConfig.from_mapping({"advanced": {"keep_checkpoints": self.keep}})
        self.settings = run_settings(asynchrony=asynchrony, plan=plan(), batches=BATCHES)
        hooks = SimpleNamespace(checkpoint=self.checkpoint, save=self.save, saved=self.saved_now)
        saver = Saver(
            self,
            self.settings,
            hooks,
            self.checkpoints.parent,
            rate_settings={},
            say=lambda _: None,
            now=lambda: self.clock,
            wait=self._wait,
        )
        with mock.patch.object(saver_module, "RunDir"):
            try:
                while step < BATCHES:
                    step += 1
                    if self.rng.random() < 0.8 or step == BATCHES:
                        self.step = step
                        self.out.replaced += self.checkpoint(step).exists()
                        if saver.save(step, last=step == BATCHES):
                            assert self.saved == step
                            self.out.saved += 1
                        else:
                            self.out.full += 1
                    self.clock += self.rng.choice((1, 30))
                    if step > 2 and self.rng.random() < 0.2:
                        step -= 2  # a run that goes on from an older one
                        self.saved = min(self.saved, step)
            except SaveError:
                self.out.given_up += 1

    def _wait(self, seconds):
        self.clock += seconds

    # -- as the framework --

    def checkpoint(self, step):
        return self.checkpoints / f"global_step_{step}"

    def save(self, step, folder):
        (folder / "actor").mkdir()
        file = os.open(folder / "actor" / "model.bin", os.O_CREAT | os.O_WRONLY)
        try:
            if os.write(file, content_of(step)) < len(content_of(step)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)

    def saved_now(self, step, folder):
        self.saved = step

    # -- as the fleet --

    def run(self, group, method, *arguments):
        if method is LearnerRank.known_premise:
            return [{"step": self.step}]
        assert method is Coordinator.save_buffer
        return [run(self._save_buffer(*arguments))]

    def run_on_living(self, group, method, *arguments):
        return [{"1": [{"0/0": []}]}]

    async def _save_buffer(self, folder):
        coordinator = Coordinator(self.settings, self.step)
        broker = coordinator._broker
        for shard in range(self.pieces if self.step < BATCHES else 0):
            ticket = await broker.admit(shard)
            await broker.put(ticket, rollout(self.settings.plan, ticket))

        async def show(piece):
            return data_of(piece)

        (await coordinator._buffer_files())._learners = SimpleNamespace(show=show)
        return await coordinator.save_buffer(folder)

    # -- what is found --

    def _check(self, root):
        checkpoints = root / "run" / "checkpoints"
        tidy(checkpoints)
        if checkpoints.is_dir():
            left = [path.name for path in checkpoints.iterdir() if path.name.startswith(".")]
            assert not left, f"{left} are left"
        newest = find_newest(checkpoints)
        assert not newest.skipped, newest.skipped
        assert newest.step >= self.saved, f"the newest is of step {newest.step}, and {self.saved} was saved"
        if newest.folder is None:
            return
        self.saved = newest.step
        assert (newest.folder / "actor" / "model.bin").read_bytes() == content_of(newest.step)
        assert ProcessKnowledge.read(newest.folder).premise == {"step": newest.step}
        run(self._resume(newest))

    async def _resume(self, newest):
        if newest.step == BATCHES:
            return
        coordinator = Coordinator(self.settings, newest.step)
        given = []

        async def give(piece):
            given.append(piece)

        (await coordinator._buffer_files())._learners = SimpleNamespace(give=give)
        resumed = await coordinator.resume_buffer(str(newest.folder))
        assert resumed.lost == 0, resumed
        assert resumed.kept == coordinator._broker.ledger.produced == self.pieces, resumed
        assert all(torch.equal(piece.payload["data"], data_of(piece)["data"]) for piece in given)


def content_of(step):
    return bytes([step]) * 1000


def data_of(piece):
    return {"data": torch.arange(8) + piece.ticket.shard}

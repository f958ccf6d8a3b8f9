"""A package of a third party, made for one test: its entry points replace classes of the plugin."""

from __future__ import annotations

from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: throwaway\nVersion: 1.0\n"

CLASSES = """
import os
import signal

from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.lab.demo.simulators.metaworld_env import MetaWorldTaskEnv
from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from rlinf_async.ray_runtime.publication import weights


class BrokenEnv(MetaWorldTaskEnv):
    steps = 0

    def chunk_step(self, actions):
        self.steps += 1
        if self.steps == 6:
            raise FloatingPointError("the simulator has exploded")
        return super().chunk_step(actions)


class BrokenRolloutWorker(BatchingRolloutWorker):
    def predict(self, *arguments, **keywords):
        # Not only in version 1, which newer weights may have replaced before its first pass.
        if self.version >= 1:
            raise ArithmeticError("the forward pass has no memory left")
        return super().predict(*arguments, **keywords)


class KilledRolloutWorker(BatchingRolloutWorker):
    def predict(self, *arguments, **keywords):
        if self.version == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().predict(*arguments, **keywords)


class HungryRolloutWorker(BatchingRolloutWorker):
    def predict(self, *arguments, **keywords):
        if self.version >= 1:
            self.gpu_memory.take(self.gpu_memory.share + 1)
        return super().predict(*arguments, **keywords)


class HungryActorWorker(StreamingActorWorker):
    def optimizer_step(self):
        if self.version == 1:
            self.gpu_memory.take(self.gpu_memory.share + 1)
        return super().optimizer_step()


class BrokenActorWorker(StreamingActorWorker):
    def optimizer_step(self):
        if self.version == 1:
            raise ZeroDivisionError("the optimizer divides by zero")
        return super().optimizer_step()


class UnsendingActorWorker(StreamingActorWorker):
    def __init__(self, cfg):
        super().__init__(cfg)
        send = weights._send

        def fail(coordinator, version, *rest):
            if version == 2:
                raise BufferError("the weights do not fit")
            send(coordinator, version, *rest)

        weights._send = fail
"""


def install(directory: Path, *entry_points: str) -> Path:
    """Lay the package out in `directory`, to be put on PYTHONPATH; `group: name = Class` each."""
    site = directory / "site"
    info = site / "throwaway-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "throwaway_workers.py").write_text(CLASSES)
    (info / "METADATA").write_text(METADATA)
    lines = []
    for entry in entry_points:
        group, _, assignment = entry.partition(": ")
        name, _, value = assignment.partition(" = ")
        lines += [f"[{group}]", f"{name} = throwaway_workers:{value}", ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return site

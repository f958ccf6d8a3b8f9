"""Our learner in one process, as the only learner rank."""

import gc
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch.distributed as dist

from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.config import resolve, write_back
from tests.hosts.rlinf.learners import SIZES, actor_of, learner_of, watched, without_ray
from tests.hosts.rlinf.synthetic import fields, in_order, pieces
from tests.making import accept

STEPS = "actor.global_batch_size=64"
"""Three optimizer steps in each pass over a batch, instead of one."""


@contextmanager
def one_rank():
    """Real actors may be built in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
            patch.setenv(name, value)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        gc.freeze()  # RLinf collects garbage after every batch; what was imported need not be searched
        with without_ray(0, 1):
            yield
        gc.unfreeze()
        dist.destroy_process_group()


@dataclass
class Run:
    """Our learner, and what its actor did."""

    cfg: object
    settings: object
    learner: object
    training: object
    actor: object

    @classmethod
    def of(cls, *overrides, algorithm="ppo", rank=0, examined=False):
        cfg = compose_config(f"metaworld_{algorithm}_mlp", [*SIZES, *overrides])
        settings, ours = resolve(cfg, sizes={"env": 1, "rollout": 1, "actor": 1}), cfg.copy()
        write_back(ours, settings)
        actor = actor_of(StreamingActorWorker, ours)
        actor._rank = rank
        training = watched(actor)
        return cls(cfg, settings, learner_of(actor, settings, examined=examined), training, actor)

    def batch(self, seed, *, rewards="dense"):
        return fields(self.settings.plan, self.settings.horizon, seed=seed, rewards=rewards)

    def arriving(self, index, batch, *, order=None, lag=0):
        """The pieces of a batch, with what the recorder gives to each."""
        found = in_order(pieces(self.settings.plan, batch, 0, index=index, lag=lag), order)
        if not self.settings.asynchrony.recomputes:
            for piece in found:
                del piece.payload["bootstrap_inputs"]
        return found

    def train(self, index, batch, *, order=None, lag=0, together=2):
        """Train a batch; the numbers of the samples in each micro-batch of it."""
        arriving = self.arriving(index, batch, order=order, lag=lag)
        before = len(self.training.numbers[0])
        self.actor.set_global_step(index)
        self.learner.begin(index)
        for start in range(0, len(arriving), together):
            accept(self.learner, arriving[start : start + together])
        self.training.metrics.append(self.learner.finish())
        return self.training.numbers[0][before:]

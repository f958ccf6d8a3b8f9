import asyncio
import gc
import itertools
import signal
import threading
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from rlinf_async.config import AsyncConfig, SurviveConfig
from rlinf_async.core.failures import PeerError
from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.hosts.local.learner import LocalTraining
from rlinf_async.hosts.local.trainer import interruptible
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach, point_reach
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.loops.together import together
from tests.hosts import local_runs
from tests.hosts.local_runs import nobody_is_left, small_policy

pytestmark = pytest.mark.timeout(60)

LEVELS = list(itertools.product((False, True), repeat=3))
GROUP = {"ppo": 1, "grpo": 4}


class Boom(Exception):
    """Raised by tests, and by nothing else."""


def asynchrony(train=False, rollout=False, streamer=False, **train_options):
    return AsyncConfig.from_mapping(
        {
            "train": {"enabled": train, **train_options},
            "rollout": {"enabled": rollout},
            "streamer": {"enabled": streamer},
            "advanced": {"normalization": "running", "balance": "exact"},
        }
    )


def small(algorithm="ppo", levels=asynchrony(), **changes):  # noqa: B008 frozen
    given = {"algorithm": algorithm, "asynchrony": levels, "group_size": GROUP[algorithm]}
    return local_runs.small(**given | changes)


def run(settings, environments=None, policy=small_policy, **options):
    build = environments or point_reach(group_size=settings.group_size, seed=settings.seed)
    return LocalTrainer(settings, build, policy, **options).run()


@pytest.fixture
def trained(monkeypatch):
    """The pieces that the learner was given, each with the batch that it was given for."""
    seen = []
    begin, accept = StreamingLearner.begin, StreamingLearner.accept

    def noting_begin(self, batch):
        self.batch_under_test = batch
        begin(self, batch)

    def noting_accept(self, pieces):
        seen.extend((self.batch_under_test, piece) for piece in pieces)
        return accept(self, pieces)

    monkeypatch.setattr(StreamingLearner, "begin", noting_begin)
    monkeypatch.setattr(StreamingLearner, "accept", noting_accept)
    return seen


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize(("train", "rollout", "streamer"), LEVELS)
def test_every_setting_trains_each_trajectory_once_and_within_the_bound(
    algorithm, train, rollout, streamer, trained
):
    settings = small(algorithm, asynchrony(train, rollout, streamer))
    result = run(settings)

    plan = settings.plan
    keys = Counter((piece.ticket.batch, *piece.key) for _, piece in trained)
    assert set(keys.values()) == {1}
    assert len(keys) == settings.batches * plan.pieces_per_rank
    assert all(batch == piece.ticket.batch for batch, piece in trained)
    bound = 1 if train else 0
    assert all(0 <= batch - piece.oldest <= bound for batch, piece in trained)

    trajectories = settings.batches * plan.trajectories_per_batch
    assert (result.ledger.produced, result.ledger.trained) == (trajectories, trajectories)
    assert result.ledger.in_flight == 0
    assert not result.ledger.refused
    steps = trajectories * settings.horizon
    assert result.ledger.env_steps_trained == sum(report.env_steps for report in result.reports) == steps


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_it_learns_to_reach_the_point(algorithm):
    settings = small(
        algorithm,
        asynchrony(True, True, True),
        total_envs=32,
        horizon=10,
        rollout_epochs=1,
        batches=25,
        global_batch_size=160,
        micro_batch_size=80,
        update_epoch=6,
        value_lr=1e-3,
    )
    success = [report.success for report in run(settings, policy=partial(GaussianPolicy, hidden=32)).reports]
    assert sum(success[:3]) / 3 < 0.3
    assert sum(success[-3:]) / 3 > 0.7


def test_every_step_is_reported_in_order():
    seen = []
    result = run(small(), on_step=lambda report, _: seen.append(report))
    assert [report.step for report in seen] == [1, 2, 3, 4]
    assert tuple(seen) == result.reports


def test_nothing_of_single_steps_is_kept_of_a_run_that_is_long():
    seen = []
    result = run(small(), on_step=lambda report, _: seen.append(report), keep_steps=False)
    assert (result.reports, result.metrics) == ((), ())
    assert len(seen) == small().batches
    assert {report.total for report in seen} == {4}


def fails_at_once(levels):
    """The same, and the first error of an environment ends the run."""
    return replace(levels, survive=SurviveConfig(env_restarts=0))


FAILING = pytest.mark.parametrize("levels", [asynchrony(), asynchrony(True, True, True)], ids=["off", "full"])


def test_a_failing_run_leaves_no_word_of_errors_that_only_echo_its_own(caplog):
    class Crashing(PointReach):
        def chunk_step(self, actions):
            raise Boom("a simulator has crashed")

    with pytest.raises(RuntimeError, match="Boom"):
        run(small(levels=fails_at_once(asynchrony(True, True, True))), lambda first, size: Crashing(size))
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_weights_that_are_not_finite_are_never_acted_by(monkeypatch):
    step = LocalTraining._step

    def diverging(self):
        step(self)
        with torch.no_grad():
            next(self.model.parameters()).fill_(float("inf"))

    monkeypatch.setattr(LocalTraining, "_step", diverging)
    with pytest.raises(RuntimeError, match="weights of version 1 are not finite"):
        run(small(levels=asynchrony(True, True, True)))
    assert nobody_is_left()


@FAILING
@pytest.mark.parametrize(
    ("part", "method"),
    [
        (StreamingLearner, "begin"),
        (StreamingLearner, "accept"),
        (LocalTraining, "_step"),
        (StreamingLearner, "finish"),
    ],
)
def test_a_failing_learner_ends_the_run_with_its_error(levels, part, method, monkeypatch):
    boom, calls, original = Boom("diverged"), itertools.count(), getattr(part, method)

    def failing(self, *arguments):
        if next(calls) == 1:
            raise boom
        return original(self, *arguments)

    monkeypatch.setattr(part, method, failing)
    with pytest.raises(Boom) as caught:
        run(small(levels=levels))
    assert caught.value is boom
    assert nobody_is_left()


@pytest.mark.parametrize("bound", [0, 1, 2, 4])
@pytest.mark.parametrize("streamer", [False, True])
def test_a_straggler_is_waited_for_once_others_are_as_far_ahead_as_the_bound_allows(bound, streamer, trained):
    settings = small(
        levels=asynchrony(True, True, streamer, max_staleness=bound), rollout_epochs=1, batches=bound + 3
    )
    others = settings.plan.shards - 1
    ahead = threading.Barrier(others + 1)  # the straggler, and each of the others at the end of its lead
    lead = (bound + 1) * settings.horizon

    class Paced(PointReach):
        taken = 0

        def chunk_step(self, actions):
            self.taken += 1
            straggles = self._groups[0] == 0
            if self.taken == (1 if straggles else lead):
                ahead.wait(timeout=30)
            return super().chunk_step(actions)

    result = run(settings, lambda first, size: Paced(size, first=first))
    staleness = [batch - piece.oldest for batch, piece in trained]
    assert max(staleness) == bound
    assert min(staleness) >= 0
    assert result.ledger.trained == settings.batches * settings.plan.trajectories_per_batch
    assert not result.ledger.refused


@pytest.mark.parametrize("levels", [(False, False, False), (True, True, True)])
def test_an_interrupt_in_the_middle_of_a_run_is_one_and_leaves_its_ledger(levels):
    settings = small(levels=asynchrony(*levels), batches=1000)
    build = point_reach(group_size=settings.group_size, seed=settings.seed)

    def interrupt(report, metrics):
        if report.step == 2:
            signal.raise_signal(signal.SIGINT)

    trainer = LocalTrainer(settings, build, small_policy, on_step=interrupt)
    assert trainer.ledger.produced == 0
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    ledger = trainer.ledger
    assert ledger.trained >= 2 * 16
    assert ledger.in_flight >= 0


async def _left_alone():
    try:
        await asyncio.Event().wait()
    finally:
        raise PeerError("nobody answers any more")


async def _interrupted():
    signal.raise_signal(signal.SIGINT)


async def _failed():
    raise Boom


@pytest.mark.parametrize(("event", "raised"), [(_interrupted, KeyboardInterrupt), (_failed, Boom)])
def test_what_is_said_by_those_who_have_lost_their_peers_is_not_what_has_ended_the_run(event, raised):
    with pytest.raises(raised):
        asyncio.run(interruptible(together([_left_alone(), event()])))

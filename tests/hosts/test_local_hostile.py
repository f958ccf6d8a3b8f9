"""Environments and policies of a run in one process that raise anything, fork, or change what all share."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import threading
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console

from rlinf_async.core.failures import PolicyFailure, in_words
from rlinf_async.core.restarts import RestartBudget
from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.hosts.local.host import LocalHost
from rlinf_async.hosts.local.inference import InferenceRank
from rlinf_async.hosts.local.learner import LocalTraining
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from rlinf_async.loops import env_restarts, simulator_thread
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.reading.spans import read_spans
from tests.hostile_errors import ALL_RAISED, WORST
from tests.hosts.local_runs import nobody_is_left, small, small_policy

pytestmark = pytest.mark.timeout(60)

LEVELS = pytest.mark.parametrize("mode", ["off", "full"])


@pytest.fixture(autouse=True)
def restarts_at_once(monkeypatch):
    """Environments are built anew without the wait before."""
    monkeypatch.setattr(env_restarts, "RestartBudget", partial(RestartBudget, first_wait_s=0.0))


def settings(mode="full", *, batches=3, **survive):
    asynchrony = {"mode": mode, "survive": {"env_restarts": 1000, **survive}}
    if mode == "full":
        asynchrony["advanced"] = {"normalization": "running"}
    samples = {"global_batch_size": 24, "micro_batch_size": 12}
    return small(asynchrony, total_envs=8, horizon=3, batches=batches, update_epoch=1, **samples)


def run(settings, env_cls, **options):
    result = LocalTrainer(
        settings, lambda first, size: env_cls(size, first=first), small_policy, **options
    ).run()
    plan, ledger = settings.plan, result.ledger
    assert ledger.trained == settings.batches * plan.trajectories_per_batch
    assert ledger.produced == ledger.trained + ledger.in_flight + ledger.refused.total()
    assert nobody_is_left()
    return result


@LEVELS
@pytest.mark.parametrize("method", ["reset", "step"])
def test_whatever_environments_raise_costs_a_rollout_and_is_named_with_its_shard(mode, method, tmp_path):
    """Each of the errors once, with a rollout that works in between."""
    errors, told, lock = iter(ALL_RAISED), [], threading.Lock()
    worked = set()

    class Hostile(PointReach):
        def reset(self):
            self.next = None
            with lock:
                shard = self._groups[0] // self._size
                if shard in worked:
                    self.next = next(errors, None)
                worked.symmetric_difference_update({shard})
            if self.next is not None and method == "reset":
                self.next.fail()
            return super().reset()

        def chunk_step(self, actions):
            if self.next is not None:
                self.next.fail()
            return super().chunk_step(actions)

    one = settings(mode, batches=16)
    result = run(one, Hostile, run_dir=tmp_path, on_fault=told.append)
    assert next(errors, None) is None
    faults = read_faults(tmp_path)
    kinds = Counter(fault.error.partition(":")[0].partition("\n")[0] for fault in faults)
    assert kinds == Counter(raised.kind for raised in ALL_RAISED)
    assert {fault.action for fault in faults} == {"environments built anew"}
    assert {fault.shard for fault in faults} <= set(range(one.plan.shards))
    assert len(told) == sum(report.restarts.get("env", 0) for report in result.reports) == len(faults)
    assert result.ledger.refused == {"env failed": len(faults) * one.plan.envs_per_shard}
    restarts = [span for span in read_spans(tmp_path / "trace") if span["kind"] == "restart"]
    assert Counter(span["error"] for span in restarts) == kinds


@pytest.mark.parametrize("raised", WORST)
def test_environments_that_cannot_be_built_end_the_run_with_one_error(raised):
    def build(first, size):
        return raised.fail() if first else PointReach(size)

    with pytest.raises(RuntimeError, match=rf"^the environments of shard 1 cannot be built: {raised.kind}"):
        LocalTrainer(settings(), build, small_policy).run()
    assert nobody_is_left()


@pytest.mark.parametrize("raised", WORST)
def test_closing_that_fails_costs_a_run_nothing(raised, tmp_path):
    class Hostile(PointReach):
        def close(self):
            raised.fail()

    told = []
    result = run(settings(batches=1), Hostile, run_dir=tmp_path, on_fault=told.append)
    assert result.weights
    assert len(told) == settings().plan.shards
    for shard, fault in enumerate(read_faults(tmp_path)[::-1]):
        assert (fault.shard, fault.action) == (shard, "they are left unclosed")
        assert fault.error.startswith(raised.kind)


def test_closing_that_hangs_is_left_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(simulator_thread, "CLOSE_TIMEOUT_S", 0.05)
    held = threading.Event()

    class Hostile(PointReach):
        def close(self):
            held.wait()

    environments = lambda first, size: Hostile(size, first=first)  # noqa: E731
    LocalTrainer(settings(batches=1), environments, small_policy, run_dir=tmp_path).run()
    held.set()
    assert {fault.what for fault in read_faults(tmp_path)} == {"simulator hangs"}


@pytest.mark.parametrize("raised", WORST)
@pytest.mark.parametrize(("where", "call"), [(GaussianPolicy, "sample"), (InferenceRank, "_load")])
@LEVELS
def test_whatever_a_policy_raises_ends_the_run_with_one_error_that_blames_it(
    mode, where, call, raised, monkeypatch
):
    calls, works = itertools.count(), getattr(where, call)

    def failing(*given):
        return raised.fail() if next(calls) == 2 else works(*given)

    monkeypatch.setattr(where, call, failing)
    with pytest.raises(PolicyFailure, match=rf"^the policy has failed on inference rank \d: {raised.kind}"):
        run(settings(mode), PointReach)
    assert nobody_is_left()


@pytest.mark.parametrize("raised", WORST)
def test_whatever_is_raised_in_the_learner_ends_the_run(raised, monkeypatch):
    monkeypatch.setattr(LocalTraining, "train_micro_batch", raised.fail)
    with pytest.raises(Exception) as failed:  # noqa: PT011 any error, and nothing but an error
        run(settings(), PointReach)
    assert in_words(failed.value).startswith(raised.kind)
    assert repr(failed.value)
    assert pickle.loads(pickle.dumps(failed.value))
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler  # asyncio has left in order
    assert nobody_is_left()


class ElsewherePolicy(asyncio.DefaultEventLoopPolicy):
    """Whoever asks it for a loop gets none."""

    def new_event_loop(self):
        raise NotImplementedError("no loop for you")


def test_a_run_is_the_same_whatever_environments_set_for_all_of_the_process(tmp_path, monkeypatch):
    """The working directory, the event loops, whether gradients are kept, standard output and input."""
    monkeypatch.chdir(tmp_path)
    config = {
        "host": "local",
        "run_dir": "runs/here",
        "env": {"env_class": "point_reach"},
        "model": {"model_type": "gaussian_mlp", "obs_dim": 2, "action_dim": 2, "num_action_chunks": 1},
    }
    assert LocalHost().run_dir(OmegaConf.create(config)) == tmp_path / "runs" / "here"

    class Meddling(PointReach):
        def __init__(self, size, *, first):
            super().__init__(size, first=first)
            asyncio.set_event_loop_policy(ElsewherePolicy())

        def reset(self):
            os.chdir("/")
            torch.set_grad_enabled(False)
            return super().reset()

    try:
        meddled = run(settings("off"), Meddling, run_dir=tmp_path / "runs")
    finally:
        asyncio.set_event_loop_policy(None)
    plain = run(settings("off"), PointReach)
    assert all(torch.equal(tensor, plain.weights[name]) for name, tensor in meddled.weights.items())


def test_an_output_that_environments_have_closed_ends_no_run(tmp_path):
    with (tmp_path / "output").open("w") as output:
        display = RunDisplay(Console(file=output))
        display.start("a run", step=0, total=1)
    display.note("nobody hears it")  # a file that is closed: ValueError
    under = (tmp_path / "other").open("w", buffering=1)
    os.close(under.fileno())
    RunDisplay(Console(file=under)).note("nor this")  # its descriptor is closed: OSError
    with suppress(OSError):
        under.close()

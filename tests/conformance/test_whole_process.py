"""What environments do to the process that they are in, on every host."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async.core.failures import EnvironmentsFailed, FailedForGood, ShardFailure
from rlinf_async.hosts.local import declared
from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.observe.reading.faults import read_faults
from tests.conformance.environments import Steady
from tests.conformance.hosts import host_or_skip
from tests.conformance.test_copies import same
from tests.conformance.test_local_runs import Linear, run, settings_of


class Watched(Steady):
    """Notes in which thread it is called."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.threads = []

    def reset(self):
        self.threads.append(threading.get_ident())
        return super().reset()

    def chunk_step(self, actions):
        self.threads.append(threading.get_ident())
        return super().chunk_step(actions)

    def update_reset_state_ids(self):
        self.threads.append(threading.get_ident())


def test_all_of_a_rollout_is_done_in_the_one_thread_of_the_shard_with_what_comes_after_it(host):
    with host(Watched) as playing:
        playing.play(2)
        threads = playing.built[-1].threads
    assert len(threads) >= 11
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


@pytest.fixture(autouse=True)
def nothing_stays_changed():
    place, dtype, threads, limit = (
        Path.cwd(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        sys.getrecursionlimit(),
    )
    handler = signal.getsignal(signal.SIGTERM)
    yield
    os.chdir(place)
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    sys.setrecursionlimit(limit)
    assert signal.getsignal(signal.SIGTERM) is handler


def acting(act, where, base=Steady):
    """Environments that do something to their process whenever they are built, reset or stepped."""

    class Acting(base):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            if where == "build":
                act()

        def reset(self):
            if where == "reset":
                act()
            return super().reset()

        def chunk_step(self, actions):
            if where == "step":
                act()
            return super().chunk_step(actions)

    return Acting


def fork():
    """Make a copy of this process, which goes on as its parent does unless somebody ends it."""
    os.fork()


HARMLESS = {
    "another directory": lambda: os.chdir("/"),
    "fewer threads": lambda: torch.set_num_threads(1),
    "megabytes of output": lambda: sys.stdout.write("x" * 3_000_000),
    "megabytes of errors": lambda: os.write(2, b"x" * 1_000_000),
    "a fork": fork,
    "a higher recursion limit": lambda: sys.setrecursionlimit(4000),
    "random numbers": lambda: (torch.manual_seed(0), np.random.seed(0), random.seed(0)),
    "gradients": lambda: torch.set_grad_enabled(True),
    "warnings that are errors": lambda: warnings.simplefilter("error"),
    "numpy that raises": lambda: np.seterr(all="raise"),
}


@pytest.mark.parametrize("where", ["build", "reset", "step"])
@pytest.mark.parametrize("what", HARMLESS)
def test_a_rollout_is_what_it_is_whatever_its_environments_do_that_is_theirs(host, what, where, capfd):
    here = os.getpid()
    with warnings.catch_warnings(), host(Steady) as steady, host(acting(HARMLESS[what], where)) as other:
        if os.getpid() != here:
            os._exit(0)  # a copy of the tests: hosts of workers build here, and not in the thread of a shard
        for found, expected in zip(other.play(2), steady.play(2), strict=True):
            same(found, expected)
    capfd.readouterr()


@pytest.mark.parametrize("where", ["reset", "step"])
def test_handlers_of_signals_are_for_the_main_thread_as_the_fault_says(host, where):
    act = partial(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    with host(acting(act, where)) as playing, pytest.raises(ShardFailure) as raised:
        playing.play()
    assert "signal only works in main thread" in str(raised.value.error)
    assert "shard 1" in str(raised.value)


@pytest.mark.parametrize("name", ["workers", "rlinf"])
@pytest.mark.parametrize("where", ["build", "reset", "step"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_in_a_process_of_their_own_environments_may_calculate_as_they_like(name, where, dtype):
    with host_or_skip(name)(Steady) as steady:
        expected = steady.play(2)
    rewards = [output.rewards for output in expected]
    with host_or_skip(name)(acting(partial(torch.set_default_dtype, dtype), where)) as other:
        found = other.play(2)
    for one, exact, reward in zip(found, expected, rewards, strict=True):
        assert one.rewards.dtype is reward.dtype is torch.float32
        assert torch.equal(one.rewards, reward)
        assert torch.equal(one.observation["states"].double(), exact.observation["states"].double())


SHARED = {
    "set torch's default type to torch.float64": lambda: torch.set_default_dtype(torch.float64),
    "set torch's default type to torch.bfloat16": lambda: torch.set_default_dtype(torch.bfloat16),
    "lowered the recursion limit of the whole process to 700": lambda: sys.setrecursionlimit(700),
}


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("what", SHARED)
def test_beside_the_policy_they_may_not_and_it_is_put_back(what, where):
    before = torch.get_default_dtype(), sys.getrecursionlimit()
    with host_or_skip("local")(acting(SHARED[what], where)) as playing, pytest.raises(ShardFailure) as raised:
        playing.play()
    assert f"ValueError: the environments of shard 1 (Acting) have {what}" in str(raised.value.error)
    assert (torch.get_default_dtype(), sys.getrecursionlimit()) == before


@pytest.mark.parametrize("what", SHARED)
def test_nor_while_they_are_built_and_are_closed_then(what, monkeypatch):
    closed = []
    monkeypatch.setattr(Steady, "close", lambda self: closed.append(self))
    before = torch.get_default_dtype(), sys.getrecursionlimit()
    blame = rf"^the environments of shard 1 cannot be built: .*\(Acting\) have {what}"
    with (
        pytest.raises(EnvironmentsFailed, match=blame),
        host_or_skip("local")(acting(SHARED[what], "build")),
    ):
        """It does not come to this."""
    assert (torch.get_default_dtype(), sys.getrecursionlimit()) == before
    assert [type(env).__name__ for env in closed] == ["Acting"]


def test_nor_when_they_are_imported(monkeypatch):
    monkeypatch.setattr(declared, "load_class", lambda *_: torch.set_default_dtype(torch.float64))
    cfg = OmegaConf.create({"env": {"env_class": "far"}})
    blame = "^the environments of env.env_class=far, when they are imported, have set torch's default type to"
    with pytest.raises(ValueError, match=blame):
        declared.environments_of(cfg, settings_of())
    assert torch.get_default_dtype() is torch.float32


class Closes(Steady):
    """Closes what it has not opened, once: the first of a run's event loops."""

    victims: ClassVar[list[int]] = []
    one_closes: ClassVar = threading.Lock()

    def chunk_step(self, actions):
        if self.age[0] == 1 and self.episode[0] == 2:
            with self.one_closes:
                victims, Closes.victims = Closes.victims, []
            for descriptor in victims:
                os.close(descriptor)
        return super().chunk_step(actions)


@pytest.mark.parametrize("which", [slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 3)])
def test_descriptors_of_the_run_that_are_closed_are_open_again_and_it_is_said_by_whom(which, monkeypatch):
    held, faults = [], []
    hold = WholeProcess.hold

    def holding(self, descriptors):
        hold(self, descriptors)
        held.append(descriptors)
        if len(held) == 1:
            Closes.victims = descriptors[which]

    monkeypatch.setattr(WholeProcess, "hold", holding)
    result = run(Closes, monkeypatch, batches=3, on_fault=faults.append)
    assert len(result.reports) == 3
    # Another shard may be checked between two closes, and is blamed for those that it finds. A file that
    # another thread opens meanwhile may get such a number: its owner then closes the restored descriptor.
    said = [
        re.search(r"\(Closes\) have closed descriptors of the run \((.+?)\)", each.error) for each in faults
    ]
    assert {int(number) for each in said for number in each[1].split(", ")} == {*held[0][which]}
    assert {each.action for each in faults} == {"environments built anew"}


CLOSES_ALL = """
import os, sys
from pathlib import Path
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from rlinf_async.hosts.local.trainer import LocalTrainer
from rlinf_async.observe.ending import RunFailed, recorded
from tests.conformance.test_local_runs import settings_of
from tests.hosts.local_runs import small_policy

class ClosesAll(PointReach):
    calls = 0

    def decide(self, actions):
        type(self).calls += 1
        if type(self).calls == 20:
            os.closerange(0, 65536)
        return super().decide(actions)

run_dir = Path(sys.argv[1])
environments = lambda first, size: ClosesAll(size, first=first)
trainer = LocalTrainer(settings_of(), environments, small_policy, run_dir=run_dir)
try:
    with recorded(lambda: run_dir):
        trainer.run()
except RunFailed as failed:
    (run_dir / "said").write_text(str(failed))
    sys.exit(3)
"""


def test_environments_that_close_all_descriptors_end_the_run_in_a_sentence(tmp_path):
    run = [sys.executable, "-c", CLOSES_ALL, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done.stderr
    said = (tmp_path / "said").read_text()
    assert "have closed descriptors of the run" in said
    assert "they cannot be restored; fix that" in said
    assert [fault.what for fault in read_faults(tmp_path)][-1] == "run failed"


def test_a_loop_whose_descriptors_and_copies_are_closed_while_it_waits_says_so_and_can_end():
    process, asleep = WholeProcess(), threading.Event()
    loop = process.loop()
    select = loop._selector.select

    def selecting(timeout=None):
        asleep.set()
        return select(None if timeout is None else min(timeout, 0.1))

    def others():
        asleep.wait()
        for descriptor in [*loop.own, *(spare for spare, _ in process._spares.values())]:
            os.close(descriptor)

    loop._selector.select = selecting
    thread = threading.Thread(target=others)
    thread.start()
    try:
        with pytest.raises(FailedForGood, match="the environments have closed descriptors of the run"):
            loop.run_until_complete(asyncio.sleep(60))
        assert loop.run_until_complete(asyncio.sleep(0, "it can end")) == "it can end"
    finally:
        thread.join()
        loop.close()


def test_a_loop_whose_descriptors_are_closed_before_anybody_is_blamed_goes_on_and_they_are_named_later():
    process = WholeProcess()
    loop = process.loop()
    try:
        selector = loop._selector.fileno()
        os.close(selector)
        assert loop.run_until_complete(asyncio.sleep(0, "it went on")) == "it went on"
        with pytest.raises(ValueError, match=rf"they have closed descriptors of the run \({selector}\)"):
            process.check("they")
        process.check("they")
    finally:
        loop.close()


def test_a_loop_that_was_called_while_its_descriptors_were_closed_wakes_up(monkeypatch):
    process, asleep = WholeProcess(), threading.Event()
    loop = process.loop()
    select, called = loop._selector.select, asyncio.Event()

    def selecting(timeout=None):
        if timeout != 0:
            asleep.set()
        return select(timeout)

    def others():
        asleep.wait()
        os.close(loop._csock.fileno())
        loop.call_soon_threadsafe(called.set)
        with pytest.raises(ValueError, match="they have closed descriptors of the run"):
            process.check("they")

    monkeypatch.setattr(loop._selector, "select", selecting)
    thread = threading.Thread(target=others)
    thread.start()
    try:
        late = []
        loop.call_later(30, late.append, "woken by a timer alone")
        loop.run_until_complete(called.wait())
        assert not late
    finally:
        thread.join()
        loop.close()


class Notes(Linear):
    """A policy that notes with how many threads it calculates, acting and trained."""

    threads: ClassVar[set[int]] = set()

    def predict_action_batch(self, env_obs, mode="train", **_):
        self.threads.add(torch.get_num_threads())
        return super().predict_action_batch(env_obs, mode)

    def forward(self, forward_inputs, **_):
        self.threads.add(torch.get_num_threads())
        return super().forward(forward_inputs)


@pytest.mark.parametrize("where", ["build", "reset", "step"])
def test_the_policy_calculates_with_as_many_threads_as_before_whatever_environments_are_told(
    where, monkeypatch
):
    monkeypatch.setattr(Notes, "threads", set())
    before = torch.get_num_threads()
    run(acting(partial(torch.set_num_threads, before + 5), where), monkeypatch, policy=Notes)
    assert Notes.threads == {before}

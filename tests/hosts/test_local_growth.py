"""Environments that keep memory or files, and a run directory that grows: who, what and when is foretold."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import weakref
from functools import partial

import numpy as np
import pytest

from rlinf_async.core.restarts import RestartBudget
from rlinf_async.hosts.local import trainer
from rlinf_async.hosts.local.trainer import LocalTrainer
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from rlinf_async.loops import env_restarts
from rlinf_async.observe import holdings, resources
from rlinf_async.observe.holdings import held_by_this_process
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.resources import ResourceLog
from tests.conformance.test_local_runs import settings_of
from tests.hosts.local_runs import small_policy

MEGABYTE = 1 << 20
STEP_S = 5.0
"""The time of a step, which the test gives."""
STEPS = 14


def foretold(env_cls, run_dir):
    """What a run says of its end, step by step."""
    gc.collect()  # garbage of earlier tests would be freed meanwhile, against what the environments keep
    # And what they have freed: memory that is free and still resident would be kept without any growth.
    ctypes.CDLL(None).malloc_trim(0)
    said, steps = [], []
    log = ResourceLog(run_dir, say=said.append)

    def on_step(report, *_):
        steps.append(log.look(STEP_S * report.step, {"driver": held_by_this_process()}))

    # One step is one decision of its shards: what an environment keeps, it keeps once a batch.
    settings = settings_of(batches=STEPS, asynchrony={"mode": "off"})
    LocalTrainer(
        settings, lambda first, size: env_cls(size, first=first), small_policy, on_step=on_step
    ).run()
    return said, steps


@pytest.fixture
def little_room(monkeypatch):
    monkeypatch.setattr(holdings, "memory_left", lambda: 1000 * MEGABYTE)
    monkeypatch.setattr(holdings, "_soft_limit", lambda kind: 1000.0)


class Keeps(PointReach):
    def begin(self):
        self.kept = [*getattr(self, "kept", []), np.ones(10 * MEGABYTE, dtype=np.uint8)]
        return super().begin()


class Opens(PointReach):
    def begin(self):
        self.files = [*getattr(self, "files", []), *(os.open("/dev/null", os.O_RDONLY) for _ in range(5))]
        return super().begin()

    def close(self):
        for file in self.files:
            os.close(file)


def test_memory_that_environments_keep_is_foretold(tmp_path, little_room):
    said, _ = foretold(Keeps, tmp_path)
    (sentence,) = [one for one in said if "memory" in one]
    assert sentence.startswith("driver: its use of memory grows by ")
    assert "a minute: it uses " in sentence
    assert " which it reaches in " in sentence
    (fault,) = [fault for fault in read_faults(tmp_path) if "memory" in fault.error]
    assert (fault.process, fault.what, fault.action) == ("driver", "runs out", "the run goes on")


def test_files_that_environments_open_are_foretold(tmp_path, little_room):
    said, steps = foretold(Opens, tmp_path)
    (sentence,) = [one for one in said if "descriptors" in one]
    assert sentence.startswith("driver: its use of descriptors grows by 60 a minute")
    counts = [step["holds"]["driver"]["descriptors"]["value"] for step in steps]
    assert counts == sorted(counts)
    assert (counts[-1] - counts[0]) % 5 == 0


def test_environments_that_keep_nothing_foretell_nothing(tmp_path, little_room):
    said, steps = foretold(PointReach, tmp_path)
    assert said == []
    assert steps[-1]["foretold"] == {}


def test_a_run_directory_that_grows_is_foretold(tmp_path, monkeypatch):
    free = {"bytes": 100 * MEGABYTE}
    usage = type("Usage", (), {"used": 0, "free": property(lambda self: free["bytes"])})
    monkeypatch.setattr(resources.psutil, "disk_usage", lambda place: usage())
    said = []
    log = ResourceLog(tmp_path, say=said.append)
    for step in range(12):
        (tmp_path / f"checkpoint-{step}").write_bytes(b"x" * MEGABYTE)
        free["bytes"] -= MEGABYTE
        log.look(STEP_S * step, {})
    (sentence,) = [one for one in said if "disk" in one]
    assert sentence.startswith("the run: its use of disk grows by 12.6 MB a minute")
    assert sentence.endswith("which it reaches in 460 s")


def test_a_limit_that_comes_near_is_recorded_once_and_said_again_when_half_of_the_time_is_left(tmp_path):
    said = []
    log = ResourceLog(tmp_path, say=said.append)
    for step in range(12):
        log.look(STEP_S * step, {"env-0": {"descriptors": {"value": 10 + 5 * step, "limit": 80}}})
    assert [sentence.rpartition("in ")[2] for sentence in said] == ["35 s", "15 s"]
    (fault,) = read_faults(tmp_path)
    assert (fault.process, "env-0: " + fault.error) == ("env-0", said[0])


def test_the_status_of_a_run_has_the_growth_of_each_resource(tmp_path, little_room):
    _, steps = foretold(Opens, tmp_path)
    assert "per_minute" not in steps[0]["holds"]["driver"]["descriptors"]
    assert steps[-1]["holds"]["driver"]["descriptors"]["per_minute"] == 60.0
    assert steps[-1]["holds"]["driver"]["threads"]["per_minute"] == 0.0


def test_a_sample_that_cannot_be_taken_is_left_out(tmp_path):
    def without_descriptors():
        raise OSError(24, "Too many open files")

    log = ResourceLog(tmp_path, say=pytest.fail)
    seen = log.look(0.0, {"driver": {"threads": {"value": 3}}})
    assert log.look(STEP_S, without_descriptors) == seen


def test_a_run_is_looked_at_while_its_first_batch_is_collected(tmp_path, monkeypatch):
    """A batch may take longer than the memory lasts."""
    monkeypatch.setattr(trainer, "LOOK_INTERVAL_S", 0.0)
    looks, released = [], threading.Event()

    class Waits(PointReach):
        def decide(self, actions):
            assert released.wait(20)
            return super().decide(actions)

    def look():
        looks.append(len(steps))
        if len(looks) == 20:
            released.set()

    steps = []
    settings = settings_of(batches=2, asynchrony={"mode": "off"})
    LocalTrainer(
        settings,
        lambda first, size: Waits(size, first=first),
        small_policy,
        look=look,
        on_step=lambda *step: steps.append(step),
    ).run()
    assert looks[:20] == [0] * 20
    assert len(steps) == 2


def test_what_failed_environments_hold_is_free_before_others_are_built(monkeypatch):
    """Else environments that have used up the memory of their process fail again in all later rebuilds."""
    monkeypatch.setattr(env_restarts, "RestartBudget", partial(RestartBudget, first_wait_s=0.0))
    failed, alive = [], []

    class Failing(PointReach):
        def __init__(self, size, *, first):
            super().__init__(size, first=first)
            alive.append(sum(one() is not None for one in failed))

        def begin(self):
            if self._episode == 3 and not failed:
                failed.append(weakref.ref(self))
                raise MemoryError("there is no room for a frame")
            return super().begin()

    settings = settings_of(batches=8, asynchrony={"mode": "off"})
    LocalTrainer(settings, lambda first, size: Failing(size, first=first), small_policy).run()
    assert len(failed) == 1
    assert alive[-1] == 0


RUN = """
import resource
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from rlinf_async.hosts.local.trainer import LocalTrainer
from tests.conformance.test_local_runs import settings_of
from tests.hosts.local_runs import small_policy
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
settings = settings_of(batches=1, asynchrony={{"mode": "off"}})
result = LocalTrainer(settings, lambda first, size: PointReach(size, first=first), small_policy).run()
print(len(result.reports), "report")
"""


@pytest.mark.parametrize("limit", [130, 256])
def test_a_run_needs_few_descriptors(limit):
    """In a process of its own, as this one has the descriptors of other tests."""
    ended = subprocess.run([sys.executable, "-c", RUN.format(limit=limit)], capture_output=True, text=True)
    assert ended.stdout.endswith("1 report\n"), ended.stderr

"""Environments that keep memory or files, and a run directory that grows: who, what and when is foretold."""

import gc
import os

import numpy as np
import pytest

from rlinf_async.hosts.local.envs import PointReach
from rlinf_async.hosts.local.trainer import LocalTrainer
from rlinf_async.observe import resources
from rlinf_async.observe.failures import read_failures
from rlinf_async.observe.resources import ResourceLog, held_by_this_process
from tests.conformance.test_local_runs import settings_of

MEGABYTE = 1 << 20
STEP_S = 5.0
"""The time of a step, which the test gives."""
STEPS = 14


def foretold(env_cls, run_dir):
    """What a run says of its end, step by step."""
    gc.collect()  # garbage of earlier tests would be freed meanwhile, against what the environments keep
    said, steps = [], []
    log = ResourceLog(run_dir, say=said.append)

    def on_step(report, *_):
        steps.append(log.look(STEP_S * report.step, {"driver": held_by_this_process()}))

    # One step is one decision of its shards: what an environment keeps, it keeps once a batch.
    settings = settings_of(batches=STEPS, asynchrony={"mode": "off"})
    LocalTrainer(settings, lambda first, size: env_cls(size, first=first), on_step=on_step).run()
    return said, steps


@pytest.fixture
def little_room(monkeypatch):
    monkeypatch.setattr(resources, "memory_left", lambda: 1000 * MEGABYTE)
    monkeypatch.setattr(resources, "_soft_limit", lambda kind: 1000.0)


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
    assert sentence.startswith("driver: what it holds of memory grows by ")
    assert "a minute: it holds " in sentence
    assert " which it reaches in " in sentence
    (fault,) = [fault for fault in read_failures(tmp_path) if "memory" in fault["error"]]
    assert (fault["process"], fault["what"], fault["action"]) == ("driver", "runs out", "the run goes on")


def test_files_that_environments_open_are_foretold(tmp_path, little_room):
    said, steps = foretold(Opens, tmp_path)
    (sentence,) = [one for one in said if "descriptors" in one]
    assert sentence.startswith("driver: what it holds of descriptors grows by 60 a minute")
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
    assert sentence.startswith("the run: what it holds of disk grows by 12.6 MB a minute")
    assert sentence.endswith("which it reaches in 460 s")

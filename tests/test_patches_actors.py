"""Faults of RLinf's actors for embodied tasks: there without their patch, gone with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="the patches are for RLinf")

from tests import patching

NORMALIZED = """
import sys
from contextlib import nullcontext
from types import SimpleNamespace
import torch
from omegaconf import OmegaConf
from rlinf.workers.actor import async_ppo_fsdp_worker as asynchronous
from rlinf.workers.actor import fsdp_actor_worker as sync

steps, envs = 4, 3


def advantages(worker, said):
    algorithm = {
        "adv_type": "gae", "gamma": 1.0, "gae_lambda": 1.0, "group_size": 1, "reward_type": "chunk_level",
        "normalize_advantages": said,
    }
    batch = {
        "rewards": torch.arange(steps * envs).reshape(steps, envs, 1).float(),
        "dones": torch.zeros(steps + 1, envs, 1, dtype=torch.bool),
        "prev_values": torch.zeros(steps + 1, envs, 1),
    }
    actor = SimpleNamespace(
        cfg=OmegaConf.create({"algorithm": algorithm}), rollout_batch=batch,
        worker_timer=lambda label: nullcontext(), _accelerator_type=None,
    )
    actor.cfg.runner = {"task_type": "embodied"}
    worker.compute_advantages_and_returns(actor)
    return actor.rollout_batch["advantages"]


for module, name in ((sync, "EmbodiedFSDPActor"), (asynchronous, "AsyncPPOEmbodiedFSDPActor")):
    module.compute_rollout_metrics = lambda batch: {}
    normalized, as_they_are = (advantages(getattr(module, name), said) for said in (True, False))
    assert abs(normalized.mean()) < 1e-5
    obeyed = bool(as_they_are.mean() > 10)
    assert obeyed == (sys.argv[1] == "patched"), (name, as_they_are)
"""

AGED = """
import sys
from types import SimpleNamespace
import torch
from omegaconf import OmegaConf
from rlinf.workers.actor.async_ppo_fsdp_worker import AsyncPPOEmbodiedFSDPActor


def received(threshold):
    taken = []
    actor = SimpleNamespace(
        cfg=OmegaConf.create({"algorithm": threshold}), version=5, should_stop=False,
        log_info=lambda text: None, _recv_queue=SimpleNamespace(put=taken.append),
    )
    for name in ("_staleness_threshold", "_is_too_old"):
        if hasattr(AsyncPPOEmbodiedFSDPActor, name):
            setattr(actor, name, getattr(AsyncPPOEmbodiedFSDPActor, name).__get__(actor))
    trajectories = [SimpleNamespace(versions=torch.tensor([age])) for age in (1, 4)]

    class Channel:
        def get(self):
            actor.should_stop = len(trajectories) == 1
            return trajectories.pop(0)

        def qsize(self):
            return 0

    AsyncPPOEmbodiedFSDPActor._recv_rollout_thread_main(actor, Channel())
    return len(taken)


assert received({"staleness_threshold": 2}) == 1
try:
    found = received({})
except TypeError:
    found = None
assert found == {"stock": None, "patched": 2}[sys.argv[1]], found
"""


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> dict[str, Path]:
    """Folders that hold a copy of the installed RLinf, and one with every patch."""
    return {
        "stock": patching.copy_of("rlinf", tmp_path_factory.mktemp("stock")),
        "patched": patching.patched("rlinf", tmp_path_factory.mktemp("patched")),
    }


@pytest.mark.parametrize("side", patching.SIDES)
@pytest.mark.parametrize("script", [NORMALIZED, AGED], ids=["normalization", "staleness"])
def test_a_fault_of_an_actor_is_there_without_its_patch_and_gone_with_it(script, side, sides, tmp_path):
    place = tmp_path / "script.py"
    place.write_text(script)
    done = subprocess.run(
        [sys.executable, "-P", str(place), side],
        env={**os.environ, "PYTHONPATH": str(sides[side]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""A process that keeps to its share: torch's calls, and what stands in for a GPU."""

from dataclasses import asdict

import pytest
import torch

from rlinf_async.core.gpu_shares import GpuUse, SharedGpu
from rlinf_async.ray_runtime.processes.gpu_share import CudaMemory, KeepsToShare, KeptShare, StandInMemory

GB = 10**9
GPU = SharedGpu(
    name="GPU 0",
    learners=(0,),
    inference=(0,),
    others=("env worker 0",),
    learner_bytes=16 * GB,
    inference_bytes=2 * GB,
)


@pytest.fixture
def cuda(monkeypatch):
    """torch's functions for a GPU of 80 GB, of which 50 are used; returns the calls that set a fraction."""
    fractions = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 20 * GB)
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, device: fractions.append((fraction, device)),
    )
    return fractions


class OnGpu(KeepsToShare):
    def gpu_device(self):
        return torch.device("cuda", 3)


@pytest.mark.parametrize(("group", "share"), [("learner", 46 * GB), ("inference", 17 * GB)])
async def test_torch_gets_the_share_as_a_fraction_of_the_device(cuda, group, share):
    kept = await OnGpu().keep_to_share(GPU, group)
    assert kept == KeptShare(bytes=share, total=80 * GB, others=15 * GB, stands_in=False)
    assert cuda == [(pytest.approx(share / (80 * GB)), torch.device("cuda", 3))]


async def test_a_limited_process_tells_the_use_of_its_gpu_and_another_does_not(cuda):
    process = OnGpu()
    assert "gpu" not in await process.doing()
    await process.keep_to_share(GPU, "learner")
    answer = await process.doing()
    assert answer["gpu"] == asdict(GpuUse(total=80 * GB, used=50 * GB, reserved=20 * GB))
    assert answer["holds"]["GPU memory"] == {"value": 20 * GB}


async def test_estimates_that_do_not_fit_leave_torch_alone(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (19 * GB, 19 * GB))
    process = OnGpu()
    assert await process.keep_to_share(GPU, "learner") is None
    assert cuda == []
    assert process.gpu_memory is None


async def test_without_a_gpu_the_memory_of_the_machine_stands_in(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 80 * GB}))
    process = KeepsToShare()
    assert await process.keep_to_share(GPU, "inference") == KeptShare(
        bytes=17 * GB, total=80 * GB, others=15 * GB, stands_in=True
    )
    process.gpu_memory.take(17 * GB)
    with pytest.raises(torch.OutOfMemoryError, match=r"allocate 0\.00 GiB.* 15\.83 GiB allowed"):
        process.gpu_memory.take(1)
    assert process.gpu_memory.use() == GpuUse(total=80 * GB, used=17 * GB, reserved=17 * GB)


def test_a_share_of_all_is_a_fraction_of_one(cuda):
    CudaMemory(torch.device("cuda", 0)).limit(81 * GB)
    assert cuda == [(1.0, torch.device("cuda", 0))]
    assert StandInMemory().share == StandInMemory().total

import re
from pathlib import Path

import rlinf
import torch

from rlinf_async.hosts.rlinf.worker_process import CpuPlatform, provide_cpu_platform

ACCELERATORS_ONLY = {"get_device_properties", "mem_get_info"}
"""Names that RLinf asks for on paths that a CPU does not take: NCCL groups, and a log of GPU memory."""


def worker(platform=None, device=None):
    return type("Worker", (), {"torch_platform": platform, "torch_device_type": device})


def test_a_worker_without_an_accelerator_gets_a_platform():
    stock = worker()
    assert provide_cpu_platform(stock)
    assert isinstance(stock().torch_platform, CpuPlatform)
    assert stock().torch_device_type == "cpu"


def test_a_worker_with_an_accelerator_keeps_its_own():
    stock = worker(torch.cuda, "cuda")
    assert not provide_cpu_platform(stock)
    assert stock.torch_platform is torch.cuda


def test_the_none_that_rlinf_assigns_on_the_instance_does_not_hide_the_platform():
    stock = worker()
    made = stock()
    made.torch_platform = None
    made.torch_device_type = None
    provide_cpu_platform(stock)
    assert isinstance(made.torch_platform, CpuPlatform)
    made.torch_platform = None
    assert isinstance(made.torch_platform, CpuPlatform)
    assert made.torch_device_type == "cpu"


def test_an_accelerator_that_is_assigned_later_is_used():
    stock = worker()
    provide_cpu_platform(stock)
    stock().torch_platform = torch.cuda
    assert stock().torch_platform is torch.cuda


def test_providing_twice_is_providing_once():
    stock = worker()
    assert provide_cpu_platform(stock)
    first = stock.torch_platform
    assert not provide_cpu_platform(stock)
    assert stock.torch_platform is first


def test_it_answers_to_every_name_that_rlinf_asks_of_a_platform():
    (root,) = rlinf.__path__
    sources = (path.read_text(errors="replace") for path in Path(root).rglob("*.py"))
    asked = {name for text in sources for name in re.findall(r"torch_platform\.(\w+)", text)}
    assert len(asked) > 10
    assert {name for name in asked if not hasattr(CpuPlatform, name)} <= ACCELERATORS_ONLY


def test_rlinfs_checkpoints_keep_and_restore_the_state_of_random_numbers(monkeypatch):
    from rlinf.scheduler import Worker
    from rlinf.utils.utils import get_rng_state, set_rng_state

    monkeypatch.setattr(Worker, "torch_platform", CpuPlatform())
    monkeypatch.setattr(Worker, "torch_device_type", "cpu")
    before = get_rng_state()
    drawn = torch.rand(3)
    set_rng_state(before)
    assert torch.equal(torch.rand(3), drawn)


def test_tensors_go_where_the_platform_says():
    assert torch.zeros(1, device=CpuPlatform().current_device()).device.type == "cpu"


def test_streams_and_events_have_nothing_to_wait_for():
    platform = CpuPlatform()
    with platform.stream(platform.Stream()):
        platform.current_stream().wait_stream(platform.Stream())
    platform.Event().synchronize()
    platform.synchronize()


def test_seeding_it_seeds_torch():
    CpuPlatform().manual_seed_all(5)
    drawn = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(2), drawn)

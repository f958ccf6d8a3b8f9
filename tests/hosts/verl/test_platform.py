"""veRL without an accelerator."""

import pytest

pytest.importorskip("verl", reason="needs veRL")

import os
import subprocess
import sys

import torch

from rlinf_async.hosts.verl.platform import CpuPlatform

from verl.plugin.platform import PlatformRegistry, get_platform  # isort: skip
from verl.utils.device import get_device_id, get_device_name, get_torch_device  # isort: skip

pytestmark = pytest.mark.verl


def test_the_platform_that_is_asked_for_by_name_is_ours():
    assert type(get_platform()) is PlatformRegistry.get("cpu") is CpuPlatform
    assert get_device_name() == "cpu"
    assert torch.zeros(1).to(get_device_id()).device.type == "cpu"


def test_what_verl_asks_of_a_device_between_batches_is_answered():
    device = get_torch_device()
    for call in ("empty_cache", "synchronize", "ipc_collect", "reset_peak_memory_stats"):
        getattr(device, call)()
    assert device.max_memory_allocated() == device.memory_reserved() == 0
    assert device.mem_get_info() == (0, 0)
    assert device.is_available()
    assert device.device_count() == 1
    state = device.get_rng_state()
    drawn = torch.rand(3)
    device.set_rng_state(state)
    assert torch.equal(torch.rand(3), drawn)


def test_a_run_that_does_not_ask_for_it_finds_the_platform_that_it_would_have_found():
    code = "import verl; from verl.plugin.platform import get_platform; print(get_platform().vendor_name)"
    environment = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert found.stdout.split()[-1] == "nvidia"

"""The patches apply to the supported veRL, and change what their ledger says that they change."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import patching

if find_spec("verl") is None:  # not imported: its plugins would be, too
    pytest.skip("the patches are for veRL", allow_module_level=True)


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> Path:
    """A folder that holds a copy of the installed veRL."""
    return patching.copy_of("verl", tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    """A folder that holds a veRL with every patch applied in the order of their numbers."""
    return patching.patched("verl", tmp_path_factory.mktemp("patched"))


def test_every_patch_applies_without_fuzz_and_only_to_the_package(patched):
    assert [path.name for path in patched.iterdir()] == ["verl"]


@pytest.mark.parametrize("patch", patching.patches_of("verl"), ids=lambda patch: patch.name)
def test_a_patch_is_ready_for_upstream_and_in_the_ledger(patch):
    patching.check_form(patch)


@pytest.mark.parametrize("side", patching.SIDES)
def test_a_plugin_that_fails_is_named_once_patched(side, request, tmp_path):
    source = "import no_such_module\n"
    plugin = patching.installed_plugin(tmp_path, "verl.plugins", value="throwaway", source=source)
    folder = request.getfixturevalue(side)
    done = patching.run("import verl", folder, plugin, VERL_USE_EXTERNAL_PLUGINS="thrown")
    assert done.returncode == 0, done.stderr
    said = "'thrown' (throwaway): No module named 'no_such_module'" in done.stdout + done.stderr
    assert said == (side == "patched")


IMPORTS = """
import os
os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
import torch
from rlinf_async.hosts.verl.platform import CpuPlatform
from verl.plugin.platform import platform_manager
platform_manager.set_platform(CpuPlatform())
import verl.trainer.ppo.core_algos, verl.utils.distributed
"""


@pytest.fixture(scope="module")
def run():
    """Runs code with the veRL of a folder, on its platform of a CPU."""
    with patching.forks(IMPORTS) as run:
        yield run


BACKEND = """
import os, sys, torch
from verl.utils.distributed import initialize_global_process_group_ray
address = f"file://{sys.argv[2]}/rendezvous"
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "DIST_INIT_METHOD": address}
try:
    initialize_global_process_group_ray()
except ValueError as error:
    assert "Duplicate device type cpu" in str(error), error
    sys.exit(0 if sys.argv[1] == "stock" else 1)
total = torch.ones(1)
torch.distributed.all_reduce(total)
sys.exit(0 if sys.argv[1] == "patched" and total == 1 else 1)
"""

COUNTED = """
import sys, torch
from contextlib import nullcontext
from types import SimpleNamespace
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
seen = []


def forward_step(micro_batch, loss_function, forward_only):
    seen.append(micro_batch["batch_num_tokens"])
    return torch.zeros(1, requires_grad=True), {"loss": [0.0], "metrics": {}}


engine = SimpleNamespace(
    ulysses_sequence_parallel_size=1, get_data_parallel_group=lambda: None, get_data_parallel_size=lambda: 1,
    _gradient_sync_context=lambda **_: nullcontext(), forward_step=forward_step,
)
for told in ({}, {"batch_num_tokens": 20}):
    data = TensorDict({"loss_mask": torch.ones(4)}, batch_size=4)
    tu.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=2, **told)
    FSDPEngine.forward_backward_batch(engine, data, None)
assert seen == [4, 4, *{"stock": (4, 4), "patched": (20, 20)}[sys.argv[1]]], seen
"""


MEAN = """
import sys, torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import FSDPActorConfig

actor = FSDPActorConfig(strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1)
actor.global_batch_info.update(dp_size=1, batch_num_tokens=24, global_batch_size=8, loss_scale_factor=None)
old, new, advantages = (torch.randn(8, 3) for _ in range(3))


def loss(rows):
    parts = (tensor[rows] for tensor in (old, new, advantages, torch.ones(8, 3)))
    found, _ = get_policy_loss_fn("geo_mean")(*parts, config=actor)
    return found


whole, parts = loss(slice(None)), loss(slice(4)) + loss(slice(4, None))
assert abs(whole) > 1e-3
added_up = torch.allclose(parts, whole)
assert added_up == (sys.argv[1] == "patched"), (parts, whole)
"""


@pytest.mark.parametrize("side", patching.SIDES)
@pytest.mark.parametrize(
    "script", [BACKEND, COUNTED, MEAN], ids=["backend of a CPU", "tokens of a step", "mean of a step"]
)
def test_a_fault_of_verl_is_there_without_its_patch_and_gone_with_it(script, side, request, run, tmp_path):
    done = run(script, request.getfixturevalue(side), arguments=[side, str(tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr

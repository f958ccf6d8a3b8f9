"""What veRL has of us once it is imported: the trainer, a platform, and a look at the `async` block."""

import pytest
import torch
import verl.utils.config
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.trainer import main_ppo
from verl.utils.device import get_device_id, get_device_name, get_torch_device

from rlinf_async.hosts.verl.platform import CpuPlatform
from tests import fresh

REGISTERED = """
import verl
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.plugin.platform import PlatformRegistry
print("vla_async" in TRAINER_REGISTRY, PlatformRegistry.get("cpu") is not None)
"""
BROKEN = "import sys; sys.modules['rlinf_async.hosts.verl.trainer'] = None\n" + REGISTERED


GROUND = "import torch, ray, tensordict, transformers, torch.distributed.tensor"
"""What veRL imports of others, once for all of these processes."""


def run(code, **environment):
    """Run code in a process that has not imported veRL; return its last line and its errors."""
    done = fresh.run(code, ground=GROUND, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1], done.stderr


def test_importing_verl_registers_the_trainer_and_the_platform():
    said, errors = run(REGISTERED)
    assert said == "True True"
    assert "rlinf-async:" not in errors


def test_a_run_that_wants_no_plugins_gets_none():
    said, errors = run(REGISTERED, VERL_USE_EXTERNAL_PLUGINS="none", VERL_PLATFORM="")
    assert said == "False False"
    assert "rlinf-async:" not in errors


def test_a_plugin_that_cannot_be_loaded_says_so_where_verl_would_not():
    said, errors = run(BROKEN)
    assert said == "False True"
    (line,) = [line for line in errors.splitlines() if line.startswith("rlinf-async:")]
    assert "ModuleNotFoundError" in line
    assert "doctor" in line


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
    assert run(code, VERL_PLATFORM="")[0].split()[-1] == "nvidia"


def config(mode, block):
    return OmegaConf.create(
        {
            "trainer": {"v1": {"trainer_mode": mode}},
            "actor_rollout_ref": {},
            **({"async": block} if block else {}),
        }
    )


def checked(cfg):
    """What veRL's own command does with a config before anything else."""
    main_ppo.validate_config(config=cfg, use_reference_policy=False, use_critic=False)


def test_verls_command_checks_its_config_by_what_looks_at_the_block():
    assert main_ppo.validate_config is verl.utils.config.validate_config
    assert hasattr(verl.utils.config.validate_config, "__wrapped__")


@pytest.mark.parametrize(
    ("mode", "block", "words"),
    [
        ("sync", {"mode": "full"}, "'sync' reads no async block; use trainer.v1.trainer_mode=vla_async"),
        ("separate_async", {"mode": "train"}, "reads no async block"),
        ("vla_asyn", None, "did you mean 'vla_async'?"),
    ],
)
def test_a_run_that_would_be_synchronous_without_a_word_ends_with_one_line(mode, block, words, capsys):
    with pytest.raises(SystemExit) as ended:
        checked(config(mode, block))
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


@pytest.mark.parametrize("block", [None, {"mode": "off"}])
def test_a_run_that_asks_for_nothing_is_verls_own(block, capsys):
    with pytest.raises(ConfigAttributeError):  # veRL's own check looks for more than there is
        checked(config("sync", block))
    assert capsys.readouterr().err == ""

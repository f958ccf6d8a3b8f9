"""An `async` block that veRL's own trainers would not read ends the run before Ray starts."""

import pytest

pytest.importorskip("verl", reason="veRL is not installed")

import verl.utils.config
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError
from verl.trainer import main_ppo

pytestmark = pytest.mark.verl


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

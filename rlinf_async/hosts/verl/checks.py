"""Checks of veRL: which one is here, and whether the plugin is in it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rlinf_async.extras import INSTALL_AGAIN
from rlinf_async.hosts.verl.block import PLATFORM_VARIABLE, TRAINER_MODE
from rlinf_async.hosts.verl.versions import FIRST_RELEASE, FIRST_UNSUPPORTED_RELEASE
from rlinf_async.observe.check import (
    Check,
    check_range,
    failures,
    output_of,
    probe,
    skipped,
    version,
    without,
)

PLUGINS_VARIABLE = "VERL_USE_EXTERNAL_PLUGINS"
PLUGIN_NAME = "rlinf_async"
"""The name of our entry point of `verl.plugins`."""

TRAINER_PROBE = f"""
import os, torch
if not torch.cuda.is_available():
    os.environ.setdefault("{PLATFORM_VARIABLE}", "cpu")
import verl
from verl.trainer.ppo.v1 import get_trainer_cls
get_trainer_cls("{TRAINER_MODE}")
"""
GPUS_PROBE = "import torch; print(torch.cuda.device_count())"


def checks() -> list[Check]:
    """Every check, in the order in which a reader should mend what they find."""
    installed = version("verl")
    if installed is None:
        return [skipped("verl", "not installed; configs for veRL need it, in an environment of its own")]
    ground = [
        check_range("verl", installed, least=FIRST_RELEASE, below=FIRST_UNSUPPORTED_RELEASE),
        check_plugins(os.environ),
    ]
    if failed := failures(ground):
        return [*ground, *without(failed, "verl trainer", "verl platform")]
    return [*ground, check_trainer(), check_platform(os.environ)]


def check_plugins(environ: Mapping[str, str]) -> Check:
    """Check that the environment lets veRL load plugins, ours among them."""
    plugins = environ.get(PLUGINS_VARIABLE, "auto")
    if plugins == "auto" or PLUGIN_NAME in [name.strip() for name in plugins.split(",")]:
        return Check("verl plugins", "ok", f"{PLUGINS_VARIABLE}={plugins}: veRL loads {PLUGIN_NAME}")
    return Check(
        "verl plugins",
        "fail",
        f"{PLUGINS_VARIABLE}={plugins} keeps veRL from loading {PLUGIN_NAME}",
        f"unset {PLUGINS_VARIABLE}, or name {PLUGIN_NAME} in it, or set "
        "VERL_USE_EXTERNAL_MODULES=rlinf_async.hosts.verl.plugin",
    )


def check_trainer(code: str = TRAINER_PROBE) -> Check:
    """Check that veRL, which only logs that a plugin fails, knows our trainer mode."""
    failure = probe(code, ground=["import torch"])
    if failure:
        return Check("verl trainer", "fail", failure, f"import it to see why; {INSTALL_AGAIN}")
    return Check("verl trainer", "ok", f"trainer.v1.trainer_mode={TRAINER_MODE} is registered")


def check_platform(environ: Mapping[str, str], code: str = GPUS_PROBE) -> Check:
    """Check that veRL's own command will look for the accelerator of this machine."""
    platform = environ.get(PLATFORM_VARIABLE)
    output, _ = output_of(code, ground=["import torch"])
    gpus = int(output or 0)
    if gpus or platform == "cpu":
        return Check("verl platform", "ok", f"{PLATFORM_VARIABLE}={platform}" if platform else f"{gpus} GPU")
    return Check(
        "verl platform",
        "warn",
        f"no GPU, and {PLATFORM_VARIABLE}={platform or 'unset'}; rlinf-async train sets it",
        f"export {PLATFORM_VARIABLE}=cpu before python -m verl.trainer.main_ppo",
    )

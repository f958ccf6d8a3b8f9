"""The veRL that is installed: its version, what a process does before it imports it, and checks of both."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from importlib.metadata import version as version_of

from rlinf_async import __version__
from rlinf_async.extras import INSTALL_AGAIN
from rlinf_async.hosts.verl.recognition import TRAINER_MODE
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

# Equal to INSTALL_COMMAND and to the extra `verl` in pyproject.toml.
FIRST_RELEASE, FIRST_UNSUPPORTED_RELEASE = (0, 9, 1), (0, 10)
"""Supported releases of veRL: from the first of these on, and below the second."""
INSTALL_COMMAND = "pip install 'verl[verl-core]>=0.9.1,<0.10', in an environment without RLinf"
PLATFORM_VARIABLE = "VERL_PLATFORM"
"""The variable that tells veRL of the kind of accelerator, before it is imported."""
PLATFORM_LOGGER = "verl.plugin.platform.platform_manager"
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


def versions() -> dict[str, str]:
    """Return the versions of this package, of veRL, and of the packages that both need.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    return {"rlinf-async": __version__, **{name: version_of(name) for name in ("verl", "ray", "torch")}}


def get_ready() -> bool:
    """Prepare this process for importing veRL, and return True if there is an accelerator.

    Without one, veRL has to be told so before it is imported. It repeats that, and it names every engine that
    could be installed, which nobody has asked for.
    """
    import torch  # explaining a config does without

    # Called before every import of veRL; Python keeps one copy of an equal filter.
    logging.getLogger(PLATFORM_LOGGER).addFilter(is_worth_reading)
    warnings.filterwarnings("ignore", message=r".* engine is not available", category=UserWarning)
    has_accelerator = torch.cuda.is_available()
    if not has_accelerator:
        # The user's own choice stays.
        os.environ.setdefault(PLATFORM_VARIABLE, "cpu")
    return has_accelerator


def is_worth_reading(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO


def checks() -> list[Check]:
    """Every check, in the order in which a reader should mend what they find."""
    release = version("verl")
    if release is None:
        return [skipped("verl", "not installed; configs for veRL need it, in an environment of its own")]
    ground = [
        check_range("verl", release, least=FIRST_RELEASE, below=FIRST_UNSUPPORTED_RELEASE),
        check_plugins(os.environ),
    ]
    if failure := failures(ground):
        return [*ground, *without(failure, "verl trainer", "verl platform")]
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
    # A probe that fails prints nothing; the check `gpu` says why.
    gpus = int(output or 0)
    if gpus or platform == "cpu":
        return Check("verl platform", "ok", f"{PLATFORM_VARIABLE}={platform}" if platform else f"{gpus} GPU")
    return Check(
        "verl platform",
        "warn",
        f"no GPU, and {PLATFORM_VARIABLE}={platform or 'unset'}; rlinf-async train sets it",
        f"export {PLATFORM_VARIABLE}=cpu before python -m verl.trainer.main_ppo",
    )

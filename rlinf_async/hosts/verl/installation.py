"""The installed veRL: its version, the preparation of a process before its import, and checks of both."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from importlib.metadata import version as version_of

from rlinf_async import __version__
from rlinf_async.extras import INSTALL_AGAIN
from rlinf_async.hosts.verl.recognition import TRAINER_MODE
from rlinf_async.observe.check import Check, failures, skipped, without
from rlinf_async.observe.probes import check_range, output_of, probe, version

# Equal to INSTALL_COMMAND and to the extra `verl` in pyproject.toml.
FIRST_RELEASE, FIRST_UNSUPPORTED_RELEASE = (0, 9, 1), (0, 10)
"""Supported releases of veRL: from the first of these, and below the second."""
INSTALL_COMMAND = "pip install 'verl[verl-core]>=0.9.1,<0.10', in an environment without RLinf"
PLATFORM_VARIABLE = "VERL_PLATFORM"
"""The variable with the kind of accelerator, which veRL reads when it is imported."""
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

    Without an accelerator, a variable must say so before veRL is imported. veRL logs that, and warns of every
    engine that is not installed; both are filtered out.
    """
    import torch  # not needed to explain a config

    # May be called several times: Python keeps one copy of an equal filter.
    logging.getLogger(PLATFORM_LOGGER).addFilter(is_worth_reading)
    warnings.filterwarnings("ignore", message=r".* engine is not available", category=UserWarning)
    has_accelerator = torch.cuda.is_available()
    if not has_accelerator:
        # The user's own choice is kept.
        os.environ.setdefault(PLATFORM_VARIABLE, "cpu")
    return has_accelerator


def is_worth_reading(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO


def checks() -> list[Check]:
    """Return all checks; their faults should be fixed in this order."""
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
    """Check that environment variables let veRL load our plugin."""
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
    """Check that veRL knows our trainer mode, as it only logs the failure of a plugin."""
    failure = probe(code, ground=["import torch"])
    if failure:
        return Check("verl trainer", "fail", failure, f"import it to see why; {INSTALL_AGAIN}")
    return Check("verl trainer", "ok", f"trainer.v1.trainer_mode={TRAINER_MODE} is registered")


def check_platform(environ: Mapping[str, str], code: str = GPUS_PROBE) -> Check:
    """Check that veRL's own command will use this machine's accelerator, or its CPU if there is none."""
    platform = environ.get(PLATFORM_VARIABLE)
    output, _ = output_of(code, ground=["import torch"])
    # A failed probe prints nothing; the check `gpu` reports the reason.
    gpus = int(output or 0)
    if gpus or platform == "cpu":
        return Check("verl platform", "ok", f"{PLATFORM_VARIABLE}={platform}" if platform else f"{gpus} GPU")
    return Check(
        "verl platform",
        "warn",
        f"no GPU, and {PLATFORM_VARIABLE}={platform or 'unset'}; rlinf-async train sets it",
        f"export {PLATFORM_VARIABLE}=cpu before python -m verl.trainer.main_ppo",
    )

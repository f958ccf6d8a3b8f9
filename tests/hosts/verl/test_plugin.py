"""How veRL finds us: by importing itself."""

import pytest

pytest.importorskip("verl", reason="needs veRL")

import os
import subprocess
import sys

pytestmark = pytest.mark.verl

REGISTERED = """
import verl
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.plugin.platform import PlatformRegistry
print("vla_async" in TRAINER_REGISTRY, PlatformRegistry.get("cpu") is not None)
"""
BROKEN = "import sys; sys.modules['rlinf_async.hosts.verl.trainer'] = None\n" + REGISTERED


def run(code, **environment):
    """(Last line, stderr) of a fresh interpreter."""
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "VERL_PLATFORM": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return found.stdout.splitlines()[-1], found.stderr


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

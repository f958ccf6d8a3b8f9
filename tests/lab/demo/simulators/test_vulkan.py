"""What the doctor says about ManiSkill with and without a Vulkan driver."""

import importlib.util

import pytest

from rlinf_async.lab.demo.simulators import vulkan
from rlinf_async.lab.demo.simulators.vulkan import DRIVERS_VARIABLE, SOFTWARE_DRIVER, check_vulkan
from rlinf_async.observe.check import Check

FAILS = "raise RuntimeError('failed to find a rendering device')"


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(vulkan, "is_here", lambda name: True)
    monkeypatch.delenv(DRIVERS_VARIABLE, raising=False)


@pytest.mark.usefixtures("installed")
def test_a_machine_without_a_driver_is_told_which_package_has_one(tmp_path):
    found = check_vulkan(FAILS, tmp_path / "no.json")
    assert found.status == "warn"
    assert "failed to find a rendering device" in found.detail
    assert "apt-get install libx11-6 chromium-common" in found.mend
    assert f"export {DRIVERS_VARIABLE}={tmp_path / 'no.json'}" in found.mend


@pytest.mark.usefixtures("installed")
def test_a_driver_that_is_there_but_not_named_has_only_to_be_named(tmp_path):
    (tmp_path / "driver.json").touch()
    found = check_vulkan(FAILS, tmp_path / "driver.json")
    assert found.mend == f"without a GPU: export {DRIVERS_VARIABLE}={tmp_path / 'driver.json'}"


@pytest.mark.usefixtures("installed")
def test_the_driver_that_was_chosen_is_named(monkeypatch):
    assert check_vulkan("").detail == "ManiSkill has a driver of the system"
    monkeypatch.setenv(DRIVERS_VARIABLE, "chosen.json")
    assert "VK_ICD_FILENAMES=chosen.json" in check_vulkan("").detail


def test_without_maniskill_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(vulkan, "is_here", lambda name: False)
    assert check_vulkan(FAILS).status == "skip"


def test_a_run_that_could_build_no_task_does_not_begin(monkeypatch):
    monkeypatch.setattr(vulkan, "check_vulkan", lambda: Check("vulkan", "warn", "no device", "export A=B"))
    here = {"env": {"train": {"env_type": "maniskill"}}}
    with pytest.raises(ValueError, match="env_type=maniskill: no device; export A=B"):
        vulkan.require_vulkan(here)
    vulkan.require_vulkan({**here, "cluster": {"num_nodes": 2}})  # whose drivers are not to be seen from here
    vulkan.require_vulkan({"env": {"train": {"env_type": "maniskill", "env_class": "of_somebody"}}})
    vulkan.require_vulkan({"maniskill": {"mine": 1}, "env": {"train": {"env_type": "libero"}}})
    monkeypatch.setattr(vulkan, "check_vulkan", lambda: Check("vulkan", "ok", "a driver of the system"))
    vulkan.require_vulkan(here)


@pytest.mark.maniskill
@pytest.mark.skipif(importlib.util.find_spec("sapien") is None, reason="sapien is not installed")
def test_the_remedy_for_a_machine_without_a_gpu_works(monkeypatch):
    if not SOFTWARE_DRIVER.is_file():
        pytest.skip(f"there is no {SOFTWARE_DRIVER}: apt-get install chromium-common")
    monkeypatch.setenv(DRIVERS_VARIABLE, str(SOFTWARE_DRIVER))
    assert check_vulkan().status == "ok"
    monkeypatch.setenv(DRIVERS_VARIABLE, "")
    monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent.json")  # hides the drivers of the system
    found = check_vulkan()
    assert found.status == "warn"
    assert "failed to find a rendering device" in found.detail

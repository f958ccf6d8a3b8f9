"""What the doctor finds of veRL."""

from importlib.util import find_spec

import pytest

from rlinf_async.doctor.installation import check_entry_points, entry_points
from rlinf_async.hosts.rlinf.host import RLinfHost
from rlinf_async.hosts.verl import installation


def test_without_verl_it_is_one_line_and_no_failure(monkeypatch):
    monkeypatch.setattr(installation, "version", lambda _: None)
    (found,) = installation.checks()
    assert (found.name, found.status) == ("verl", "skip")
    assert "not installed" in found.detail


@pytest.mark.parametrize(
    ("value", "status"),
    [("auto", "ok"), ("rlinf_async", "ok"), ("other, rlinf_async", "ok"), ("none", "fail")],
)
def test_plugins_that_are_switched_off_are_found(value, status):
    found = installation.check_plugins({"VERL_USE_EXTERNAL_PLUGINS": value})
    assert found.status == status
    assert ("VERL_USE_EXTERNAL_MODULES" in found.mend) == (status == "fail")


@pytest.mark.parametrize("code", ["print(0)", "raise SystemExit('no driver')"])
def test_a_machine_without_a_gpu_is_told_how_verl_finds_its_cpu(code):
    found = installation.check_platform({}, code)
    assert (found.status, "VERL_PLATFORM=cpu" in found.mend) == ("warn", True)
    assert installation.check_platform({"VERL_PLATFORM": "cpu"}, code).status == "ok"


def test_a_machine_with_gpus_needs_no_word():
    found = installation.check_platform({}, "print(2)")
    assert (found.status, found.detail) == ("ok", "2 GPU")


def test_a_trainer_that_verl_does_not_know_is_a_failure_with_its_cause():
    found = installation.check_trainer("raise ValueError(\"Unknown trainer 'vla_async'\")")
    assert found.status == "fail"
    assert "Unknown trainer 'vla_async'" in found.detail


def test_plugins_that_are_switched_off_are_one_failure_and_not_three(monkeypatch):
    monkeypatch.setattr(installation, "version", lambda _: "0.9.1")
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    assert [(check.name, check.status) for check in installation.checks()] == [
        ("verl", "ok"),
        ("verl plugins", "fail"),
        ("verl trainer", "skip"),
        ("verl platform", "skip"),
    ]


@pytest.mark.verl
def test_the_trainer_is_registered_by_importing_verl():
    pytest.importorskip("verl", reason="veRL is not installed")
    assert installation.check_trainer().status == "ok"


@pytest.mark.verl
def test_where_only_verl_is_installed_the_other_framework_is_not_missed():
    """The environment of `make setup-verl`; what each class imports is found by importing it."""
    pytest.importorskip("verl", reason="veRL is not installed")
    if find_spec("rlinf"):
        pytest.skip("RLinf is installed here, too")
    (rlinf,) = RLinfHost().checks()
    assert (rlinf.status, rlinf.detail.split(";")[0]) == ("skip", "not tried: not installed")
    assert check_entry_points(entry_points()).status == "ok"

"""Worker processes with variables of their own start without loading Ray twice, and Ray itself without the
packages of its dashboard."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from ray._private import ray_constants, utils

from rlinf_async.ray_runtime.cluster import quick_start, start_worker
from rlinf_async.ray_runtime.cluster.quick_start import CHECK, SCRIPT_NAME, starting_quickly
from rlinf_async.ray_runtime.cluster.start_worker import RAYS_NAME, command, rays_script

WORDS = ["worker.py", "--node-id=7"]


def arguments(language="PYTHON", **context):
    return [*WORDS, f"--language={language}", f"--serialized-runtime-env-context={json.dumps(context)}"]


def rays_context(**fields):
    """The context as Ray writes it."""
    from ray._private.runtime_env.context import RuntimeEnvContext

    return json.loads(RuntimeEnvContext(**fields).serialize())


def test_variables_and_interpreter_of_rays_own_context_are_used(monkeypatch):
    monkeypatch.delenv("BASH_ENV", raising=False)
    context = rays_context(env_vars={"RANK": "0"}, py_executable=sys.executable)
    assert command(arguments(**context)) == ({"RANK": "0"}, [sys.executable, *WORDS])
    assert command(arguments()) == ({}, [sys.executable, *WORDS])
    assert command([*WORDS, "--language=PYTHON"]) == ({}, [sys.executable, *WORDS])


@pytest.mark.parametrize(
    "given",
    [
        WORDS,
        [*WORDS, "--language=JAVA"],
        arguments("JAVA"),
        arguments(command_prefix=["conda", "activate", "other"]),
        arguments(override_worker_entrypoint="/other/worker.py"),
        arguments(a_field_of_a_later_ray="1"),
        arguments(env_vars={"PATH": "/bin:${PATH}"}),
        arguments(py_executable="nsys profile python"),
        arguments(py_executable="/no/python"),
    ],
)
def test_all_else_is_left_to_ray(given):
    assert command(given) is None


def test_a_shell_that_has_a_file_to_run_first_is_left_to_ray(monkeypatch):
    monkeypatch.setenv("BASH_ENV", "/etc/first")
    assert command(arguments()) is None


@pytest.mark.parametrize("value", ["plain", "of ${HOME}"])
def test_the_worker_gets_what_rays_script_gives_it(value, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("import os, sys; print(sys.argv[1:], os.environ['GIVEN'], 'ray' in sys.modules)")
    words = arguments(**rays_context(env_vars={"GIVEN": value}, py_executable=sys.executable))[1:]
    said = [
        subprocess.run(
            [sys.executable, script, str(worker), *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "HOME": "/home/of/a user"},
        ).stdout
        for script in (start_worker.__file__, rays_script())
    ]
    assert said[0] == said[1] != ""


def test_only_inside_the_block_ray_starts_workers_by_our_script():
    before = getattr(ray_constants, SCRIPT_NAME), getattr(utils, CHECK)
    with starting_quickly():
        script = Path("/rays/folder", getattr(ray_constants, SCRIPT_NAME))
        assert script.samefile(start_worker.__file__)
        # By its name Ray knows its own script, and leaves it out for a worker without variables of its own.
        assert script.name != before[0] == RAYS_NAME
    assert (getattr(ray_constants, SCRIPT_NAME), getattr(utils, CHECK)) == before


def test_a_dashboard_without_its_packages_is_noticed_as_ever(monkeypatch):
    missing = ImportError("no aiohttp")
    monkeypatch.setattr(utils, CHECK, lambda: missing)
    with starting_quickly():
        assert utils.get_dashboard_dependency_error() is None
    monkeypatch.setattr(quick_start, "find_spec", lambda name: None)
    with starting_quickly():
        assert utils.get_dashboard_dependency_error() is missing


def test_packages_of_the_dashboard_are_those_that_ray_imports():
    import ray.dashboard

    source = Path(next(iter(ray.dashboard.__path__)), "optional_deps.py").read_text()
    assert [name for name in quick_start.DASHBOARDS_PACKAGES if f"import {name}" not in source] == []


def test_a_ray_without_these_names_starts_as_ever(monkeypatch):
    monkeypatch.delattr(ray_constants, SCRIPT_NAME)
    monkeypatch.delattr(utils, CHECK)
    with starting_quickly():
        assert not hasattr(utils, CHECK)
        assert not hasattr(ray_constants, SCRIPT_NAME)

"""What the doctor says about a good machine and about bad ones."""

import dataclasses
import json
import os
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rlinf_async import doctor
from rlinf_async.doctor import installation, machine
from rlinf_async.hosts.rlinf import checks
from rlinf_async.hosts.rlinf.tree import RLinfTree, rlinf_tree
from rlinf_async.observe.check import Check
from tests.fresh import printed

GIB = 1 << 30
LOADS = EntryPoint("good", "json:loads", "rlinf_async.hosts")
BROKEN = EntryPoint("bad", "no_such_module:Host", "rlinf_async.hosts")


def raylet(address: str) -> list[str]:
    return ["/site-packages/ray/core/src/ray/raylet/raylet", "--node_id=1", f"--gcs-address={address}"]


def dashboard(host: str) -> list[str]:
    return ["python", "-u", "/site-packages/ray/dashboard/dashboard.py", f"--host={host}", "--port=8265"]


@pytest.fixture(scope="module")
def all_checks():
    """What the doctor says about this machine."""
    return doctor.run_checks()


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 13), "fail"), ((3, 11, 7), "ok"), ((3, 13, 0), "ok"), ((3, 14, 0), "fail")],
)
def test_python_3_11_to_3_13_are_supported(version, status):
    assert installation.check_python(version).status == status


def test_a_python_that_breaks_the_imports_of_frameworks_is_named_with_its_variable():
    version = (3, 11, 7)
    without_docstrings = installation.check_python(version, optimize=2)
    assert (without_docstrings.status, without_docstrings.mend) == ("fail", "unset PYTHONOPTIMIZE")
    assert installation.check_python(version, optimize=1).status == "ok"
    strict = installation.check_python(version, warnings=["error::DeprecationWarning"])
    assert (strict.status, strict.mend) == ("warn", "unset PYTHONWARNINGS")
    assert installation.check_python(version, warnings=["ignore", "default"]).status == "ok"


def test_an_old_or_absent_torch_fails():
    assert installation.check_torch("2.13.0+cpu").status == "ok"
    assert installation.check_torch("2.5.1").status == "fail"
    assert installation.check_torch(None).status == "fail"


def test_an_rlinf_that_lacks_what_our_classes_extend_fails_and_names_it():
    assert checks.check_rlinf(RLinfTree(Path("/their/rlinf"), "0.3.0", ())).status == "ok"
    found = checks.check_rlinf(RLinfTree(Path("/their/rlinf"), "0.5.0", ("EnvWorker.init_worker",)))
    assert found.status == "fail"
    assert (
        "0.5.0 in /their/rlinf is not one that rlinf-async can extend: it has no EnvWorker.init_worker"
        in found.detail
    )
    assert checks.SUPPORTED_VERSIONS in found.mend
    assert checks.check_rlinf(None).status == "fail"


def test_the_rlinf_that_is_here_is_one_that_can_be_extended():
    assert checks.check_rlinf(rlinf_tree()).status == "ok"


def test_what_only_pages_need_is_warned_of():
    assert installation.check_extras({"jinja2": "3.1"}).status == "ok"
    found = installation.check_extras({"jinja2": None})
    assert found.status == "warn"
    assert "without jinja2" in found.detail
    assert "'jinja2>=3.1'" in found.mend


def test_a_ray_with_a_known_hole_is_warned_of_by_its_number():
    assert checks.check_ray("2.60.0").status == "ok"
    assert "CVE-2026-27482" in checks.check_ray("2.53.0").detail
    older = checks.check_ray("2.51.1")
    assert older.status == "warn"
    assert "CVE-2025-62593" in older.detail
    assert checks.check_ray(None).status == "fail"


def test_a_version_range_excludes_its_upper_end():
    limits = {"least": (1, 3), "below": (1, 4)}
    assert checks.check_range("hydra-core", "1.3.8", **limits).status == "ok"
    assert checks.check_range("hydra-core", "1.4.0", **limits).status == "fail"
    assert checks.check_range("hydra-core", "1.2.9", **limits).status == "fail"
    assert checks.check_range("hydra-core", None, **limits).status == "fail"


def test_an_entry_point_that_does_not_import_fails_and_says_why():
    found = installation.check_entry_points([LOADS, BROKEN])
    assert found.status == "fail"
    assert "no_such_module" in found.detail
    assert installation.check_entry_points([LOADS]).status == "ok"
    assert installation.check_entry_points([]).status == "fail"


def test_an_entry_point_that_needs_an_extra_which_is_not_here_is_counted_and_no_failure(
    tmp_path, monkeypatch
):
    (tmp_path / "of_an_extra.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'hydra'\", name='hydra')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    found = installation.check_entry_points([LOADS, EntryPoint("needs", "of_an_extra:X", LOADS.group)])
    assert (found.status, found.detail.split(";")[0]) == ("ok", "1 of 2 import")


def test_what_stands_on_an_rlinf_that_has_failed_is_not_listed_as_a_failure_of_its_own(monkeypatch):
    monkeypatch.setattr(checks, "rlinf_tree", lambda: RLinfTree(Path("/their"), "0.1.0", ("EnvWorker",)))
    monkeypatch.setattr(checks, "version", lambda package: {"ray": None}.get(package, "1.3"))
    monkeypatch.setattr(checks, "check_range", lambda package, *_, **__: Check(package, "ok", ""))
    found = checks.checks()
    assert [check.name for check in found if check.status == "fail"] == ["rlinf", "ray"]
    assert [(check.name, check.detail) for check in found if check.status == "skip"] == [
        (name, "not tried: it needs rlinf, ray")
        for name in ("driver hook", "worker hook", "rlinf plugins", "models")
    ]


def test_without_torch_nothing_that_needs_it_is_tried(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda package: None if package == "torch" else "1.0")
    monkeypatch.setattr(doctor, "_machine", list)
    found = {check.name: check.status for check in doctor.run_checks()}
    assert found == {
        "python": "ok",
        "torch": "fail",
        "report": "ok",
        **dict.fromkeys(("gpu", "nccl", "entry points", "frameworks"), "skip"),
    }


def test_the_models_whose_packages_are_here_are_named(monkeypatch):
    monkeypatch.setattr(checks, "is_here", lambda package: package == "openpi")
    found = checks.check_models("4.53.2")
    assert found.status == "ok"
    assert "transformers 4.53.2; the packages of openpi, openpi_cfg are here; without ABot," in found.detail


def test_little_main_memory_is_warned_of_and_a_container_counts_by_its_limit():
    assert machine.check_memory(available=60 * GIB, memory=64 * GIB).status == "ok"
    found = machine.check_memory(available=60 * GIB, memory=2 * GIB)
    assert (found.status, found.detail[:22]) == ("warn", "2.0 of 2.0 GiB free, w")


def test_available_memory_is_read_as_the_kernel_says_it(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n")
    assert machine.available_memory(tmp_path / "meminfo") == 2048 * 1024


def test_a_full_disk_is_warned_of_by_what_is_written_there():
    roomy, small = (Path("/runs"), 500 * GIB, 900 * GIB), (Path("/tmp"), 3 * GIB, 20 * GIB)
    assert machine.check_disk({"run directories": roomy}).status == "ok"
    found = machine.check_disk({"Ray's files": small, "run directories": roomy})
    assert found.status == "warn"
    assert "little room in /tmp (Ray's files)" in found.detail
    assert "RAY_TMPDIR" in found.mend
    # Ray stops at 95 %, however much that leaves.
    assert machine.check_disk({"Ray's files": (Path("/tmp"), 40 * GIB, 900 * GIB)}).status == "warn"


def test_where_a_run_writes_is_where_it_is_started_and_where_ray_is_told_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert machine.folders({"RAY_TMPDIR": "/scratch", "TMPDIR": "/other"}) == {
        "Ray's files": Path("/scratch"),
        "run directories": tmp_path,
    }


def test_the_entry_points_of_this_package_are_found():
    groups = {point.group for point in installation.entry_points()}
    wanted = {"hosts", "workers", "channels", "runners", "envs", "models"}
    assert {f"rlinf_async.{name}" for name in wanted} <= groups


@pytest.mark.parametrize("check", [checks.check_driver_hook, checks.check_worker_hook])
def test_a_hook_is_judged_by_its_subprocess(check):
    assert check("").status == "ok"
    failed = check("raise ImportError('no plugin')")
    assert failed.status == "fail"
    assert "no plugin" in failed.detail


def test_the_plugin_registers_in_a_driver_and_in_a_worker(all_checks):
    details = {check.name: check.detail for check in all_checks}
    assert details["driver hook"] == "Hydra brings the plugin to runs that ask for it"
    assert details["worker hook"] == "RLINF_EXT_MODULE registers the plugin"


def test_both_ways_into_rlinf_are_fine_and_no_rlinf_is_not(tmp_path):
    source = tmp_path / "utils.py"
    assert checks.check_plugin_scan(source).status == "fail"
    source.write_text("")
    assert "does not scan" in checks.check_plugin_scan(source).detail
    source.write_text('PLUGIN_GROUP = "rlinf.plugins"')
    assert checks.check_plugin_scan(source).detail == "RLinf scans entry points"
    assert checks.check_plugin_scan(None).status == "fail"


def test_no_working_back_end_is_warned_of_with_the_packages_to_install(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    found = machine.check_rendering(code="raise ImportError('no GL')")
    assert found.status == "warn"
    assert "osmesa: ImportError: no GL" in found.detail
    assert "libosmesa6" in found.mend


def test_a_chosen_back_end_that_does_not_work_is_warned_of(monkeypatch):
    only_egl = "import os; assert os.environ['MUJOCO_GL'] == 'egl', 'broken'"
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    found = machine.check_rendering(code=only_egl)
    assert found.status == "warn"
    assert "MUJOCO_GL=egl" in found.mend
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert machine.check_rendering(code=only_egl).detail == "MUJOCO_GL=egl"


def test_a_running_ray_that_rlinf_would_join_is_warned_of():
    commands = [["python"], raylet("10.0.0.1:6379")]
    found = machine.check_ray_address(commands, noted=None, environ={})
    assert found.status == "warn"
    assert "10.0.0.1:6379" in found.detail
    assert (
        machine.check_ray_address([], noted="10.0.0.2:6379", environ={"RAY_ADDRESS": "auto"}).status == "warn"
    )


def test_a_ray_address_that_was_chosen_or_that_finds_nothing_is_fine():
    commands = [raylet("10.0.0.1:6379")]
    assert machine.check_ray_address(commands, noted=None, environ={"RAY_ADDRESS": "local"}).status == "ok"
    assert machine.check_ray_address([["python"]], noted=None, environ={}).status == "ok"


def test_the_cluster_of_the_last_ray_start_is_read_from_its_note(tmp_path):
    assert machine.noted_cluster({"RAY_TMPDIR": str(tmp_path)}) is None
    (tmp_path / "ray").mkdir()
    note = tmp_path / "ray" / "ray_current_cluster"
    note.write_text("10.0.0.1:6379\n")
    assert machine.noted_cluster({"RAY_TMPDIR": str(tmp_path)}) == "10.0.0.1:6379"
    note.unlink()
    os.mkfifo(note)  # in a folder of another account
    assert machine.noted_cluster({"RAY_TMPDIR": str(tmp_path)}) is None


def test_command_lines_are_read_from_proc_and_a_process_that_ended_is_left_out(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"raylet\0--gcs-address=here\0")
    (tmp_path / "8").mkdir()
    assert machine.command_lines(tmp_path) == [["raylet", "--gcs-address=here"]]


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", "ok"), ("localhost", "ok"), ("::1", "ok"), ("0.0.0.0", "warn"), ("10.0.0.1", "warn")],
)
def test_a_dashboard_that_listens_beyond_this_machine_is_warned_of(host, status):
    assert machine.check_dashboard([["python"], dashboard(host)]).status == status


def test_no_dashboard_is_fine():
    assert machine.check_dashboard([["python", "--host=0.0.0.0"]]).detail == "none is running"


def test_shared_memory_below_what_ray_wants_is_warned_of_with_the_size():
    assert machine.check_shared_memory(free=4 * GIB, memory=8 * GIB).status == "ok"
    assert machine.check_shared_memory(free=GIB, memory=2 * GIB).status == "warn"
    found = machine.check_shared_memory(free=4 * GIB, memory=64 * GIB)
    assert found.status == "warn"
    assert "--shm-size=20g" in found.mend


def test_memory_is_the_limit_of_the_container_when_it_has_one(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CGROUP_LIMIT", limit)
    physical = machine.memory()
    limit.write_text("max\n")
    assert machine.memory() == physical
    limit.write_text("1048576\n")
    assert machine.memory() == 1048576


def test_a_low_open_file_limit_is_warned_of():
    assert machine.check_open_files(20000).status == "ok"
    assert machine.check_open_files(-1).status == "ok"
    assert machine.check_open_files(1024).status == "warn"


def test_unset_omp_threads_matter_only_on_a_machine_with_few_cores():
    assert machine.check_threads(cores=2, threads=None).status == "warn"
    assert machine.check_threads(cores=2, threads="1").status == "ok"
    assert machine.check_threads(cores=128, threads=None).status == "ok"


def test_every_check_has_its_own_name_and_turns_into_json(all_checks):
    assert len({check.name for check in all_checks}) == len(all_checks)
    parsed = json.loads(json.dumps([dataclasses.asdict(check) for check in all_checks]))
    assert parsed[0].keys() == {"name", "status", "detail", "mend"}
    assert all(check.mend for check in all_checks if check.status in ("warn", "fail"))
    assert all(check.detail.startswith("not tried: ") for check in all_checks if check.status == "skip")


def test_importing_the_doctor_imports_neither_ray_nor_rlinf_nor_torch():
    code = "import sys, rlinf_async.doctor; assert not {'ray', 'rlinf', 'torch', 'hydra'} & set(sys.modules)"
    printed(code)

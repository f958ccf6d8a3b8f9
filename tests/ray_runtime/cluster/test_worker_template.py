"""Ray's workers are forked from a template, and are what they would have been if Python had been started."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import psutil
import ray

from rlinf_async.ray_runtime.cluster import start_worker
from rlinf_async.ray_runtime.cluster import template as template_module
from rlinf_async.ray_runtime.cluster.start_worker import forked
from rlinf_async.ray_runtime.cluster.template import (
    SWITCH_VARIABLE,
    TESTED_VERSIONS,
    Early,
    Shared,
    Template,
)
from tests.ray_runtime.cluster.templates import WAIT_S, started, template, worker_in

pytestmark = pytest.mark.skipif(
    not ray.__version__.startswith(TESTED_VERSIONS), reason="this Ray is not forked"
)


@pytest.fixture(autouse=True)
def template_of_workers(monkeypatch):
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)


@pytest.fixture
def worker(tmp_path):
    return worker_in(tmp_path)


def test_a_worker_is_forked_with_its_own_arguments_folder_variables_and_random_numbers(worker, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with template(early=("mailbox",), free=frozenset({"RANK"})) as (name, process):
        first, second = (started(worker, name, folder=worker.parent, RANK=rank) for rank in "01")
        usual = started(worker, "no-such-template", folder=worker.parent, RANK="0")
    assert first["parent"] == second["parent"] == process.pid
    assert [first["early"], usual["early"]] == [True, False]
    for same in ("arguments", "folder", "main", "template", "files"):
        assert first[same] == usual[same] == second[same]
    assert first["oom"] == usual["oom"] == "500\n"
    assert [first["rank"], second["rank"], first["template"]] == ["0", "1", None]
    assert set(first["drawn"]).isdisjoint(second["drawn"])


def test_a_worker_with_another_environment_starts_python_and_the_next_is_forked(worker):
    with template(free=frozenset({"RANK"})) as (name, process):
        parents = [
            started(worker, name, **variables)["parent"]
            for variables in ({"RANK": "0"}, {"RAY_BACKEND_LOG_LEVEL": "debug"}, {"RANK": "1"})
        ]
    assert [parent == process.pid for parent in parents] == [True, False, True]


def test_a_variable_that_an_import_has_read_is_not_free(worker, tmp_path, monkeypatch):
    (tmp_path / "reading.py").write_text("import os\nRANK = os.environ.get('RANK')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with template(modules=("reading",), free=frozenset({"RANK"})) as (name, process):
        assert started(worker, name, RANK="0")["parent"] != process.pid


def test_a_template_after_another_does_not_see_the_name_of_that_one(worker, tmp_path, monkeypatch):
    (tmp_path / "reading.py").write_text("import os\ndict(os.environ)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(start_worker.TEMPLATE_VARIABLE, "of-the-raylet-before")
    with template(early=("reading",)) as (name, process):
        assert started(worker, name)["parent"] == process.pid


def test_without_a_number_of_threads_only_ray_is_imported(worker, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with template(early=("mailbox",)) as (name, process):
        said = started(worker, name)
    assert [said["parent"] == process.pid, said["early"]] == [True, False]


@pytest.mark.parametrize(
    "source",
    [
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        "opened = open('/dev/full', 'w')",
        "from ray._raylet import WorkerID\nWorkerID.from_random()",
        "raise ImportError('a package of this machine is broken')",
    ],
    ids=["a thread", "a device", "random numbers are drawn", "no import"],
)
def test_a_template_that_cannot_be_forked_ends_and_python_is_started(source, worker, tmp_path, monkeypatch):
    (tmp_path / "unusual.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with template(modules=("unusual",)) as (name, process):
        assert started(worker, name)["parent"] != process.pid
        process.wait(WAIT_S)


JEMALLOC = """
import threading
held, named = threading.Event(), threading.Event()
def work():
    with open("/proc/thread-self/comm", "w") as name:
        name.write("jemalloc_bg_thd")
    named.set()
    held.wait()
threading.Thread(target=work, daemon=True).start()
named.wait()
"""


def test_a_thread_that_starts_again_in_a_child_does_not_end_the_template(worker, tmp_path, monkeypatch):
    (tmp_path / "jemalloc.py").write_text(JEMALLOC)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with template(modules=("jemalloc",)) as (name, process):
        assert started(worker, name)["parent"] == process.pid


def test_a_module_of_the_drivers_folder_that_workers_would_find_first_ends_the_template(
    worker, tmp_path, monkeypatch
):
    script = tmp_path / "of the driver" / "train.py"
    script.parent.mkdir()
    script.with_name("mailbox.py").write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with template(early=("mailbox",)) as (name, process):
        assert started(worker, name)["parent"] != process.pid
        process.wait(WAIT_S)


def test_a_class_that_becomes_an_actor_at_its_import_draws_no_random_number(worker, tmp_path, monkeypatch):
    (tmp_path / "remote.py").write_text("import ray\n@ray.remote\nclass Remote:\n    pass")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with template(modules=("remote",)) as (name, process):
        assert started(worker, name)["parent"] == process.pid


def test_the_template_ends_with_the_raylet_and_with_a_driver_that_has_not_named_it():
    with template(serves=False) as (_, process), subprocess.Popen(["sleep", "600"]) as raylet:
        cluster = {"raylet": raylet.pid, "environment": dict(os.environ)}
        process.stdin.write(json.dumps(cluster).encode())
        process.stdin.close()
        raylet.kill()
        assert process.wait(WAIT_S) == 0
    with template(serves=False) as (_, process):
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


DRIVER = """
import sys
from rlinf_async.ray_runtime.cluster.template import EARLY, Shared
EARLY.begin(Shared(early=("importing",)))
print(EARLY.take(Shared(early=("importing",))).process.pid, "ray" in sys.modules, flush=True)
sys.stdin.readline()
"""


def test_a_template_that_still_imports_ends_with_its_driver(tmp_path, monkeypatch):
    began = tmp_path / "began"
    os.mkfifo(began)
    source = f"open({str(began)!r}, 'w').close()\nimport threading\nthreading.Event().wait()"
    (tmp_path / "importing.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        number, has_ray = driver.stdout.readline().split()
        process = psutil.Process(int(number))
        began.read_text()  # returns when the import has begun
        driver.kill()
    assert psutil.wait_procs([process], timeout=WAIT_S)[1] == []
    assert has_ray == "False"


def test_variables_that_the_driver_sets_later_are_those_of_workers_unless_they_were_read_here(
    worker, tmp_path, monkeypatch
):
    (tmp_path / "reading.py").write_text("import os\nos.environ.get('READ')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    parents = []
    for variable in ("OTHER", "READ", "LD_LIBRARY_PATH_OF_A_TEST"):
        begun = Template(Shared(early=("reading",)))
        with monkeypatch.context() as later, begun.process:
            later.setenv(variable, "1")
            begun.serve(os.getpid())
            parents.append(started(worker, begun.name)["parent"] == begun.process.pid)
            begun.end()
    assert parents == [True, False, False]


@pytest.mark.parametrize("lacks", ["process files", "a GPU that no fork could use"])
def test_no_template_is_begun_where_workers_cannot_be_forked(lacks, tmp_path, monkeypatch):
    if lacks == "process files":
        monkeypatch.setattr(os, "pidfd_open", lambda pid: os.close(-1))
    else:
        monkeypatch.setattr(template_module, "DEVICE_FILES", (str(tmp_path),))
    early = Early()
    early.begin(Shared())
    assert early._begun is None


def test_an_early_template_is_taken_once_and_ended_if_no_cluster_takes_it():
    early, shared = Early(), Shared(early=("mailbox",))
    with early.ended_unless_taken():
        early.begin(shared)
        begun = early._begun[1]
        early.begin(shared)
        assert early.take(shared) is begun
        another = early.take(shared)
        assert another is not begun
        early.begin(shared)
        left = early._begun[1]
        early.begin(Shared())
    assert left.process.returncode is not None
    for each in (begun, another):
        assert each.process.poll() is None
        each.end()


def test_another_process_at_the_name_of_a_template_that_has_ended_gets_nothing(monkeypatch):
    name = f"test-{os.getpid()}-other"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        monkeypatch.setattr(start_worker, "account", lambda connection: os.getuid() + 1)
        assert not forked(name, [sys.executable, "worker.py"])
        with listener.accept()[0] as connection:
            assert connection.recv(1) == b""


def test_workers_for_spilled_objects_are_not_forked():
    assert not forked("no-such-template", [sys.executable, "worker.py", "--worker-type=SPILL_WORKER"])


CLUSTER = """
    import os, sys, psutil, ray
    from rlinf_async.ray_runtime.cluster.quick_start import TEMPLATE
    from rlinf_async.ray_runtime.cluster.template import EARLY, Shared
    from rlinf_async.ray_runtime.cluster.starting import starting_ray

    class Actor:
        def parent(self):
            return os.getppid()

    shared = Shared(early=("mailbox",), free=frozenset({"RANK"}))
    EARLY.begin(shared)
    with starting_ray(say=print, shared=shared, options={"include_dashboard": False}):
        of_all = {"env_vars": {"OF_ALL": "1"}}
        ray.init(address="local", num_cpus=2, log_to_driver=False, runtime_env=of_all)
    node = ray._private.worker._global_node
    template = node.all_processes[TEMPLATE][0].process.pid
    environments = {}, {"env_vars": {"RANK": "1"}}, {"env_vars": {"OTHER": "1"}}
    actors = [ray.remote(Actor).options(num_cpus=0, runtime_env=own).remote() for own in environments]
    parents = ray.get([actor.parent.remote() for actor in actors])
    raylet = node.all_processes["raylet"][0].process.pid
    print("RESULT", [{template: "template", raylet: "raylet"}.get(parent) for parent in parents], flush=True)
    print("PROCESSES", sorted(node.all_processes), flush=True)
    print("NUMBERS", raylet, *[child.pid for child in psutil.Process(template).children()], flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("ending", ["the driver is killed", "the raylet is killed"])
def test_rays_own_workers_are_forked_and_end_when_the_raylet_has_ended(ending):
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CLUSTER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with driver:
        lines = iter(driver.stdout.readline, "")
        result = next(line for line in lines if line.startswith("RESULT"))
        processes = next(line for line in lines if line.startswith("PROCESSES"))
        numbers = next(line for line in lines if line.startswith("NUMBERS")).split()[1:]
        raylet, *workers = (psutil.Process(int(number)) for number in numbers)
        (driver if ending == "the driver is killed" else raylet).kill()
        left = psutil.wait_procs(workers, timeout=WAIT_S)[1]
        driver.kill()
    assert result.split(" ", 1)[1].strip() == "['template', 'template', 'raylet']"
    assert processes.split(" ", 1)[1].strip() == "['gcs_server', 'raylet', 'rlinf_async_worker_template']"
    assert len(workers) >= 2
    assert left == []

"""What RLinf's worker groups say of workers that fail becomes one error of the driver."""

import signal
from types import ModuleType

import pytest

from rlinf_async.core.failures import Terminated
from rlinf_async.hosts.rlinf import worker_groups
from rlinf_async.hosts.rlinf.worker_groups import PrintedWords, hear_worker_groups
from rlinf_async.ray_runtime.cluster.termination import Termination

SAID = (
    "Exception occurred while running EnvWorker's function init_worker: exception is "
    "ray::EnvGroup:0:EnvWorker.init_worker() (pid=1, ip=::1)\n  File 'env.py', line 1\nValueError: no scene\n"
)


@pytest.fixture
def groups(monkeypatch):
    """RLinf's module, whose groups print and send SIGUSR1; signals are heeded afterwards as before."""
    module = ModuleType("groups")
    exec("def fail(text):\n    print(text)", vars(module))
    monkeypatch.setattr(worker_groups, "import_module", lambda name: module)
    monkeypatch.setattr(worker_groups, "TERMINATION", Termination())
    before = signal.getsignal(signal.SIGUSR1)
    yield module
    signal.signal(signal.SIGUSR1, before)


def test_the_first_failure_is_an_error_with_its_last_line_and_nothing_is_printed(groups, capsys):
    hear_worker_groups()
    groups.fail(SAID)
    groups.fail("Exception occurred while running RolloutWorker's function a: exception is died of it")
    with pytest.raises(RuntimeError, match=r"^EnvWorker's function init_worker: ValueError: no scene$"):
        signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)  # the groups that have failed of it
    assert capsys.readouterr().out == ""


def test_a_signal_of_which_no_group_has_said_anything_asks_the_run_to_end(groups):
    assert PrintedWords().first() is None
    hear_worker_groups()
    with pytest.raises(Terminated) as asked:
        signal.raise_signal(signal.SIGUSR1)
    assert asked.value.code == 138


def test_rlinfs_own_groups_print_by_the_name_that_is_replaced():
    """Or else they would print as ever."""
    import inspect

    from rlinf.scheduler.worker import worker_group

    assert worker_group.__name__ == worker_groups.GROUP_MODULE
    assert "print(" in inspect.getsource(worker_group.WorkerGroupFuncResult._wait_for_results)


@pytest.mark.parametrize("name", ["env", "rollout", "actor"])
def test_no_method_of_ours_has_the_name_of_a_groups_own(name):
    """RLinf gives a group the methods of its workers, and refuses those that it has itself."""
    from rlinf.scheduler.worker.worker_group import WorkerGroup

    from rlinf_async.entry_points import load_class

    group = {word for word in dir(WorkerGroup) if not word.startswith("__")}
    ours = [cls for cls in load_class("rlinf_async.workers", name).__mro__ if "rlinf_async" in cls.__module__]
    assert {word for cls in ours for word in vars(cls)} & group == set()

"""RLinf's worker groups: what they say of failures, and where workers are started whose nodes are lost."""

import signal
from types import ModuleType, SimpleNamespace

import pytest

from rlinf_async.core.failures import Terminated
from rlinf_async.hosts.rlinf import worker_groups
from rlinf_async.hosts.rlinf.worker_groups import PrintedErrors, StartedWorkers, hear_worker_groups
from rlinf_async.termination import Termination

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
    assert PrintedErrors().first() is None
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


GPUS = (("accelerator", 8),)


class Cluster:
    """RLinf's, of nodes with such hardware; all of them are in one group, the last one in another."""

    def __init__(self, *nodes):
        self.nodes = [
            SimpleNamespace(
                node_rank=rank,
                ray_id=f"id {rank}",
                node_ip=f"10.0.0.{rank}",
                hardware_resources=[SimpleNamespace(type=kind, count=count) for kind, count in hardware],
            )
            for rank, hardware in enumerate(nodes)
        ]
        self.get_node_info = self.nodes.__getitem__
        self.allocated = []

    def get_node_group(self, label):
        return SimpleNamespace(nodes={"cluster": self.nodes, "last": self.nodes[-1:]}[label])

    def allocate(self, **options):
        self.allocated.append((options["node_rank"], options["env_vars"]["CLUSTER_NODE_RANK"]))
        return f"handle {len(self.allocated)}"


def started(cluster, *nodes, label="cluster"):
    """Workers on these nodes, by rank."""
    workers = StartedWorkers()
    for rank, node in enumerate(nodes):
        start(workers, cluster, rank, node, label=label)
    return workers


def start(workers, cluster, rank, node, *, label="cluster"):
    workers.start(
        Cluster.allocate,
        cluster,
        worker_rank=rank,
        node_rank=node,
        node_group_label=label,
        env_vars={"RANK": str(rank), "CLUSTER_NODE_RANK": str(node)},
    )


@pytest.fixture
def lose(monkeypatch):
    """Has only these nodes left, of ten."""

    def lose(*left):
        nodes = [{"NodeID": f"id {rank}", "Alive": rank in left} for rank in range(10)]
        monkeypatch.setattr(worker_groups.ray, "nodes", lambda: nodes)

    return lose


def test_workers_of_a_lost_node_are_spread_over_those_that_have_the_fewest(lose):
    cluster = Cluster(*[GPUS] * 4)
    workers = started(cluster, 0, 0, 1, 1, 2)
    lose(0, 2, 3)
    assert workers.start_elsewhere(2) == ("handle 6", "10.0.0.3")
    assert workers.start_elsewhere(3) == ("handle 7", "10.0.0.2")
    assert cluster.allocated[-2:] == [(3, "3"), (2, "2")]
    # The one that has just come is lost with its second node.
    lose(0, 2)
    assert workers.start_elsewhere(2) == ("handle 8", "10.0.0.0")


def test_a_node_with_other_hardware_or_of_another_group_holds_no_worker(lose):
    cluster = Cluster((), GPUS, (("accelerator", 4),), GPUS)
    lose(0, 2)
    assert started(cluster, 1).start_elsewhere(0) is None
    lose(0, 1, 2)
    assert started(cluster, 3, label="last").start_elsewhere(0) is None
    assert started(cluster, 3).start_elsewhere(0) == ("handle 4", "10.0.0.1")


def test_the_node_that_ray_has_not_missed_yet_is_not_where_its_worker_goes(lose):
    cluster = Cluster((), ())
    lose(0, 1)
    assert started(cluster, 1).start_elsewhere(0) == ("handle 2", "10.0.0.0")


def test_a_run_takes_its_workers_over_and_those_of_the_next_do_not_crowd_with_them(lose):
    cluster = Cluster(*[GPUS] * 3)
    workers = started(cluster, 0, 1, 1)
    before = workers.hand_over()
    start(workers, cluster, 0, 0)
    lose(1, 2)
    assert workers.hand_over().start_elsewhere(0) == ("handle 5", "10.0.0.1")
    assert before.start_elsewhere(0) == ("handle 6", "10.0.0.2")

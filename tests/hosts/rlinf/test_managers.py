"""RLinf's managers and its probe of a node run without torch, in a Ray cluster of the run's own."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rlinf.scheduler.cluster import node
from rlinf.scheduler.manager import CollectiveManager, NodeManager, PortLockManager, WorkerManager

from rlinf_async.hosts.rlinf import managers
from rlinf_async.hosts.rlinf.managers import light, light_processes
from tests.fresh import TORCH_AND_RAY, printed


@pytest.mark.parametrize(
    "name",
    [
        "CollectiveManager",
        "DeviceLockManager",
        "NodeManager",
        "PortLockManager",
        "WorkerManager",
        "_RemoteNodeProbe",
    ],
)
def test_a_process_gets_the_class_without_torch_and_torch_where_it_is_used(name):
    said = printed(
        f"""
import sys
from ray import cloudpickle
from rlinf_async.hosts.rlinf import managers
cls = getattr(managers, {name!r})
print(cls.__name__, cls.__mro__[1].__module__.startswith("rlinf.scheduler."), "torch" in sys.modules)
from rlinf.scheduler.cluster.utils import extract_dataclass_tensor_fields
if cls.__name__.endswith("LockManager"):
    from rlinf.scheduler.worker import Worker
print("torch" in sys.modules)
from rlinf.scheduler import Channel, ComponentPlacement
print(Channel.__name__, ComponentPlacement.__name__)
import torch
from dataclasses import dataclass
@dataclass
class Sent:
    rewards: torch.Tensor
    names: list
tensors = extract_dataclass_tensor_fields(Sent(torch.ones(2), [torch.zeros(1)]))[1]
print(len(tensors), sum(tensors[0].tolist()))
""",
        ground="import ray",
    )
    assert said.split() == [name, "True", "False", "False", "Channel", "ComponentPlacement", "2", "2.0"]


def test_a_process_of_torchs_own_keeps_its_torch():
    said = printed(
        """
import torch
from rlinf_async.hosts.rlinf.late_imports import torch_when_used
with torch_when_used():
    import rlinf.utils.omega_resolver as module
print(module.torch is torch)
""",
        ground=TORCH_AND_RAY,
    )
    assert said == "True\n"


def test_the_class_travels_by_its_name_and_does_what_rlinfs_does():
    cls = light(NodeManager)
    assert (cls.__module__, cls.__qualname__, cls.MANAGER_NAME) == (
        managers.__name__,
        "NodeManager",
        "NodeManager",
    )
    assert issubclass(cls, NodeManager)
    assert light(NodeManager) is cls
    assert cls(["node"], ["group"], None).get_nodes() == (["node"], ["group"], None)


def test_other_classes_are_left_as_they_are():
    class Own(WorkerManager):
        pass

    Own.__name__ = "WorkerManager"
    assert light(Own) is Own
    assert light(Path) is Path


def test_a_manager_needs_no_environment_for_what_every_process_has(monkeypatch):
    monkeypatch.delenv("CLUSTER_NAMESPACE", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(managers, "is_own", lambda: True)
    assert WorkerManager.get_runtime_env_vars() == {"RAY_ADDRESS": "local", "CLUSTER_NAMESPACE": "RLinf"}
    assert managed_with({"env_vars": WorkerManager.get_runtime_env_vars()}) == {}
    for needed in (
        {"env_vars": {"RAY_ADDRESS": "local", "CLUSTER_NAMESPACE": "RLinf_1"}},
        {"env_vars": {"RAY_ADDRESS": "10.0.0.1:6379", "CLUSTER_NAMESPACE": "RLinf"}},
        {"env_vars": {"CLUSTER_NAMESPACE": "RLinf", "OTHER": "1"}},
        {"env_vars": {"CLUSTER_NAMESPACE": "RLinf"}, "py_modules": ["rlinf"]},
    ):
        assert managed_with(needed) == needed
    monkeypatch.setenv("CLUSTER_NAMESPACE", "others")
    assert managed_with({"env_vars": {"CLUSTER_NAMESPACE": "RLinf"}}) != {}


def managed_with(runtime_env):
    """The runtime environment that a manager is started with."""

    class Cluster:
        def _launch_manager_actor(self, manager_cls, manager_node, runtime_env):
            return runtime_env

    with light_processes(Cluster):
        return Cluster()._launch_manager_actor(WorkerManager, "node", runtime_env)


@pytest.mark.parametrize("own", [True, False])
def test_only_in_a_cluster_of_the_runs_own(monkeypatch, own):
    launched, probed = [], []

    class Cluster:
        def _launch_manager_actor(self, manager, node, runtime_env, *args):
            launched.append((manager, node, runtime_env, args))

    def remote(cls):
        return SimpleNamespace(options=lambda **options: probed.append((cls, options)))

    before = Cluster._launch_manager_actor, node._RemoteNodeProbe
    stock = SimpleNamespace(options=lambda **options: probed.append(("stock", options)))
    monkeypatch.setattr(managers, "is_own", lambda: own)
    monkeypatch.setattr(managers.ray, "remote", remote)
    with light_processes(Cluster):
        Cluster()._launch_manager_actor(PortLockManager, "node", {"env_vars": {"A": "1"}}, 1)
        node._RemoteNodeProbe._stock = stock
        node._RemoteNodeProbe.options(name="probe")
    assert (Cluster._launch_manager_actor, node._RemoteNodeProbe) == before
    manager = managers.PortLockManager if own else PortLockManager
    assert launched == [(manager, "node", {"env_vars": {"A": "1"}}, (1,))]
    assert probed == [(managers._RemoteNodeProbe if own else "stock", {"name": "probe"})]


def test_a_cluster_that_starts_its_managers_otherwise_is_left_as_it_is():
    before = node._RemoteNodeProbe
    with light_processes(type("Cluster", (), {})):
        assert node._RemoteNodeProbe is before
    assert issubclass(managers.CollectiveManager, CollectiveManager)


@pytest.mark.ray
def test_managers_of_a_running_cluster_answer_and_have_loaded_no_torch():
    code = """
from rlinf.scheduler import Cluster, manager
from rlinf_async.hosts.rlinf.managers import light_processes
from rlinf_async.ray_runtime.cluster.starting import starting_ray
import ray, sys

with starting_ray(say=print, options={"include_dashboard": False}), light_processes(Cluster):
    cluster = Cluster(num_nodes=1)
ports = manager.PortLockManager.get_proxy()
print(ports.acquire(0, "worker", 5000), ports.acquire(0, "other", 5000))
nodes, groups, _ = manager.NodeManager.get_proxy().get_nodes()
print(nodes[0].python_interpreter_path == sys.executable, len(nodes))
names = ["CollectiveManager", "DeviceLockManager", "NodeManager", "PortLockManager", "WorkerManager"]
actors = [ray.get_actor(name, namespace="RLinf") for name in names]
seen = ray.get([actor.__ray_call__.remote(lambda own: open("/proc/self/maps").read()) for actor in actors])
print(len(seen), sum("libtorch" in maps for maps in seen), "libtorch" in open("/proc/self/maps").read())
ray.shutdown()
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split()[-7:] == ["True", "False", "True", "1", "5", "0", "True"]

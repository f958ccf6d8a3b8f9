"""Places for the processes of a run, and the nodes of each kind, by resources of Ray's."""

from dataclasses import replace

import pytest
import ray
from ray.cluster_utils import Cluster

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.judge.reasons import RefusedError
from rlinf_async.hosts.verl import learner_worker, processes
from rlinf_async.hosts.verl.explain import explain
from rlinf_async.hosts.verl.placement import RESOURCE_SHARE, too_small
from rlinf_async.hosts.verl.view import VerlView
from tests.hosts.verl.configs import composed
from tests.hosts.verl.engines import settings

SIM = ("+vla.placement.env=sim", "+ray_kwargs.ray_init.resources.sim=1")


def node(*, alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


def test_a_placement_is_said_and_none_is_not():
    assert explain(composed(*SIM))["placement"] == "env on nodes with sim"
    assert explain(composed())["placement"] == ""


def test_a_resource_that_the_ray_of_the_run_would_not_have_is_refused():
    with pytest.raises(RefusedError, match=r"vla\.placement\.env=sim names a resource") as refused:
        explain(composed(SIM[0]))
    assert [reason.override for reason in refused.value.reasons] == ["~vla.placement.env"]
    there = composed(SIM[0], "+ray_kwargs.ray_init.address=auto")
    assert explain(there)["placement"] == "env on nodes with sim"


def test_learners_without_accelerators_are_placed_by_no_resource():
    overrides = ("+vla.placement.learner=train", "+ray_kwargs.ray_init.resources.train=1")
    with pytest.raises(RefusedError, match=r"vla\.placement\.learner=train does not support trainer\.device"):
        explain(composed(*overrides))


def test_a_component_that_is_misspelt_is_refused():
    with pytest.raises(RefusedError, match=r"vla\.placement\.envs.*did you mean vla\.placement\.env\?"):
        explain(composed("+vla.placement.envs=sim"))


@pytest.mark.parametrize(
    ("nodes", "on_gpu", "words"),
    [
        ([node(CPU=8)], False, "the 0 nodes with that resource have 0"),
        ([node(CPU=8), node(CPU=8, sim=1.0, alive=False)], False, "the 0 nodes with that resource have 0"),
        (
            [node(CPU=8), node(CPU=1, sim=1.0)],
            False,
            "needs 2 CPU, and the 1 nodes with that",
        ),
        ([node(CPU=2, sim=1.0)], True, "needs 1 GPU, and the 1 nodes with that resource have 0"),
    ],
)
def test_named_nodes_that_are_too_small_for_all_that_is_to_be_there_are_named(nodes, on_gpu, words):
    cfg = {"vla": {"placement": {"env": "sim", "inference": "sim"}}}
    (said,) = too_small(VerlView.of(cfg), settings().plan, nodes, on_gpu=on_gpu)
    assert words in said
    assert "vla.placement.env=sim and vla.placement.inference=sim" in said


def test_named_nodes_that_are_large_enough_are_enough():
    cfg = {"vla": {"placement": {"env": "sim"}}}
    assert not list(too_small(VerlView.of(cfg), settings().plan, [node(CPU=1, sim=1.0)], on_gpu=True))


@pytest.mark.parametrize(
    ("free", "total", "on_gpu", "words"),
    [
        ({"CPU": 2}, {"CPU": 2}, False, "set ray_kwargs.ray_init.num_cpus to at least 3,"),
        ({"CPU": 2}, {"CPU": 4}, False, "set ray_kwargs.ray_init.num_cpus to at least 5,"),
        ({"CPU": 3, "GPU": 1}, {"CPU": 3, "GPU": 1}, True, "use fewer trainer.n_gpus_per_node"),
    ],
)
def test_too_few_places_are_refused_before_anything_waits(monkeypatch, free, total, on_gpu, words):
    monkeypatch.setattr(ray, "available_resources", lambda: free)
    monkeypatch.setattr(ray, "cluster_resources", lambda: total)
    monkeypatch.setattr(ray, "nodes", list)
    with pytest.raises(ValueError, match=words):
        processes.check_places(VerlView(), settings(), on_gpu=on_gpu)


def test_enough_places_are_enough(monkeypatch):
    for name in ("available_resources", "cluster_resources"):
        monkeypatch.setattr(ray, name, lambda: {"CPU": 3, "GPU": 2})
    monkeypatch.setattr(ray, "nodes", list)
    processes.check_places(VerlView(), settings(), on_gpu=True)


def test_learners_are_placed_by_verls_own_means(monkeypatch):
    """On GPUs, which are not here: the pool is all that is looked at."""
    pools = []

    def made(**options):
        pools.append(options)
        raise InterruptedError

    monkeypatch.setattr(learner_worker, "RayResourcePool", made)
    config = composed("+vla.placement.learner=train")
    with pytest.raises(InterruptedError):
        learner_worker.start_learners(config, VerlView.of(plain(config)), settings())
    assert pools[0]["accelerator_type"] == "train"


class Where:
    """Stands for an env worker, or an inference rank."""

    def __init__(self, *_):
        pass

    def node(self):
        return ray.get_runtime_context().get_node_id()


@pytest.mark.ray
def test_processes_are_where_their_resource_is_and_all_of_them_may(monkeypatch):
    # Ray starts a Python for each core of the driver's node before anybody has asked.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    there = cluster.add_node(num_cpus=2, resources={"sim": 1}, include_dashboard=False)
    try:
        ray.init(address=cluster.address)
        monkeypatch.setattr(processes, "load_class", lambda *_: Where)
        of = settings()
        of = replace(of, plan=replace(of.plan, env_workers=2))
        config = composed("+vla.placement.env=sim", "env.workers=2")
        workers = processes.start_env_workers(VerlView.of(plain(config)), of)
        assert set(ray.get([worker.node.remote() for worker in workers])) == {there.node_id}
        assert ray.cluster_resources()["sim"] - ray.available_resources()["sim"] == pytest.approx(
            2 * RESOURCE_SHARE
        )
    finally:
        ray.shutdown()
        cluster.shutdown()

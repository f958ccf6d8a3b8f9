"""Which processes share a GPU, and with which estimates."""

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.core.gpu_shares import CONTEXT_BYTES
from rlinf_async.hosts.rlinf import footprints, gpu_shares
from rlinf_async.hosts.rlinf.placement import Machines, world_sizes
from rlinf_async.hosts.rlinf.settings import read_settings
from tests.hosts.rlinf.given import config
from tests.hosts.rlinf.test_footprints import VLA

BILLION = 10**9
ON = {"async.advanced": {"gpu_shares": True}}
SIZED = footprints.ModelSize(parameters=BILLION, source="counted")


def given(placement, changes=None, *, machines=None, known=True, monkeypatch):
    machines = machines or Machines(nodes=1, gpus=2)
    placed = {"cluster.component_placement": placement, "cluster.num_nodes": machines.nodes}
    cfg = config({**VLA, **ON, **placed, **(changes or {})})
    monkeypatch.setattr(footprints, "model_size", lambda section: SIZED if known else None)
    sizes = world_sizes(cfg["cluster"], machines)
    settings = read_settings(cfg, AsyncConfig.from_mapping(cfg["async"]), sizes)
    return cfg, settings, machines


def shared(placement, changes=None, **options):
    return gpu_shares.shared_gpus(*given(placement, changes, **options))


def test_collocated_parts_share_every_gpu_with_the_estimates_of_explain(monkeypatch):
    case = given({"actor,env,rollout": "all"}, monkeypatch=monkeypatch)
    first, second = gpu_shares.shared_gpus(*case)
    assert (first.name, first.learners, first.inference, first.others) == (
        "GPU 0",
        (0,),
        (0,),
        ("env worker 0",),
    )
    assert (second.name, second.learners, second.others) == ("GPU 1", (1,), ("env worker 1",))
    (kind,) = footprints.footprints(*case)["per_gpu"]
    assert first.inference_bytes == kind["bytes"]["inference"] == 2 * BILLION
    assert first.learner_bytes == kind["total"] - kind["bytes"]["inference"] == 4 * BILLION


@pytest.mark.parametrize(
    ("placement", "found"),
    [
        # Disaggregated: inference beside simulators, the learner alone.
        ({"actor": 1, "env,rollout": 0}, [("GPU 0", (), (0,), ("env worker 0",))]),
        # Hybrid: the learner is everywhere.
        (
            {"actor": "all", "env": 0, "rollout": 1},
            [("GPU 0", (0,), (), ("env worker 0",)), ("GPU 1", (1,), (0,), ())],
        ),
        # Two inference ranks of one GPU, and simulators on the node's CPUs.
        (
            {"actor": 1, "rollout": "0:0-1", "env": {"node_group": "node", "placement": 0}},
            [("GPU 0", (), (0, 1), ())],
        ),
        # Nobody shares.
        ({"actor": 1, "rollout": 0, "env": {"node_group": "node", "placement": 0}}, []),
        # Simulators and a reward model alone.
        ({"actor": 1, "rollout": 0, "env": 0, "reward": 1}, None),
    ],
)
def test_only_gpus_with_a_model_and_company_are_shared(placement, found, monkeypatch):
    gpus = shared(placement, monkeypatch=monkeypatch)
    seen = [(gpu.name, gpu.learners, gpu.inference, gpu.others) for gpu in gpus]
    if found is None:
        found = [("GPU 0", (), (0,), ("env worker 0",)), ("GPU 1", (0,), (), ("reward worker 0",))]
    assert seen == found


def test_a_gpu_of_several_nodes_is_named_with_its_node(monkeypatch):
    gpus = shared({"actor,env,rollout": "all"}, machines=Machines(nodes=2, gpus=2), monkeypatch=monkeypatch)
    assert [gpu.name for gpu in gpus] == [
        "GPU 0 of node 0",
        "GPU 1 of node 0",
        "GPU 0 of node 1",
        "GPU 1 of node 1",
    ]


def test_without_gpus_a_node_stands_for_one(monkeypatch):
    (gpu,) = shared({"actor,env,rollout": 0}, machines=Machines(nodes=1, gpus=0), monkeypatch=monkeypatch)
    assert (gpu.name, gpu.learners, gpu.inference, gpu.others) == ("node 0", (0,), (0,), ("env worker 0",))


TURNS = {"async.mode": "rollout", "actor.enable_offload": True, "rollout.enable_offload": True}


@pytest.mark.parametrize(
    ("changes", "known", "why"),
    [
        ({"async.advanced": {}}, True, None),
        (TURNS, True, "leave the GPU to each other"),
        ({}, False, "was not examined"),
    ],
    ids=["off", "in turns", "unknown"],
)
def test_no_limit_is_set_where_it_would_be_a_guess_and_that_is_said(changes, known, why, monkeypatch):
    case = given({"actor,env,rollout": "all"}, changes, known=known, monkeypatch=monkeypatch)
    assert gpu_shares.shared_gpus(*case) == ()
    said = list(gpu_shares.share_remarks(*case))
    assert (said == []) if why is None else (why in said[0])


def test_company_that_is_not_there_is_said(monkeypatch):
    apart = {"actor": 1, "rollout": 0, "env": {"node_group": "node", "placement": 0}}
    (said,) = gpu_shares.share_remarks(*given(apart, monkeypatch=monkeypatch))
    assert said == "async.advanced.gpu_shares=true sets no limit: no two processes share a GPU"


def test_explain_has_a_row_for_each_kind_of_gpu(monkeypatch):
    case = given({"actor": "all", "env": 0, "rollout": 1}, monkeypatch=monkeypatch)
    facts = gpu_shares.share_facts(*case, total=80.0 * BILLION)
    rest = 80 - 4 - 2 - 2 * CONTEXT_BYTES / BILLION
    alone = 80 - 4 - CONTEXT_BYTES / BILLION
    assert gpu_shares.share_rows({"gpu_shares": facts}) == [
        (
            "  shares, each of 1",
            f"at most learner rank {4 + 2 * alone / 3:.3g} GB; {alone / 3:.3g} GB left to other processes",
        ),
        (
            "  shares, each of 1",
            f"at most learner rank {4 + 2 * rest / 3:.3g} GB, inference rank {2 + rest / 3:.3g} GB",
        ),
    ]
    assert gpu_shares.share_facts(*case, total=None) == [{"gpus": 2, "shares": "--gpu-memory shows them"}]

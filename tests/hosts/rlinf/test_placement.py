from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlinf.scheduler import ComponentPlacement
from rlinf.scheduler.cluster.node import NodeGroupInfo

from rlinf_async.hosts.rlinf.placement import Machines, assignments, occupancy, world_sizes

EIGHT = Machines(nodes=1, gpus=8)
ROBOTS = [
    {"label": "a800", "node_ranks": "0-1"},
    {"label": "cpu", "node_ranks": 1, "ignore_hardware": True},
    {"label": "franka", "node_ranks": "2-3", "hardware": {"configs": [{"node_rank": 2}, {"node_rank": 3}]}},
]


def sizes(placement, machines=EIGHT, **cluster):
    return world_sizes({"component_placement": {"env,rollout,actor": placement}, **cluster}, machines)["env"]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (0, 1),
        ("0", 1),
        ("0-3", 4),
        ("0-1,3,5-7", 6),
        ("all", 8),
        ("ALL", 8),
        ("0:0-3", 4),
        ("0-3:0-7", 8),
        ("0-1:0,2-3:1-4", 5),
        ("all:0-15", 16),
        (" 0 - 3 ", 4),
        ("0-1,", 2),
        ({"node_group": "node", "placement": "0:0-2"}, 3),
    ],
)
def test_processes_are_counted_from_a_placement(placement, expected):
    assert sizes(placement) == expected


@st.composite
def placements(draw):
    """Placements that RLinf accepts: ascending resources, each with processes or without."""
    parts, resource, process = [], 0, 0
    for _ in range(draw(st.integers(1, 3))):
        first = resource + draw(st.integers(0, 1))
        count = draw(st.integers(1, 3))
        resource = first + count
        ranks = f"{first}-{resource - 1}" if count > 1 or draw(st.booleans()) else f"{first}"
        processes = count
        if draw(st.booleans()):
            processes = count * draw(st.integers(1, 3))
            ranks += f":{process}-{process + processes - 1}"
        process += processes
        parts.append(ranks)
    return ",".join(parts)


@settings(deadline=None, max_examples=100)
@given(placements())
def test_rlinf_counts_the_same(text):
    cluster = SimpleNamespace(hardware_resource_count=32, hardware_types=None)
    theirs = ComponentPlacement._parse_rank_map(None, text, cluster)
    assert sizes(text) == sum(len(processes) for processes in theirs.values())


def test_components_may_be_placed_together_or_each_by_itself():
    placement = {"actor, rollout": "0-1", "env": {"node_group": "node", "placement": 0}}
    cluster = {"component_placement": placement}
    assert world_sizes(cluster, Machines(nodes=1, gpus=2)) == {"actor": 2, "rollout": 2, "env": 1}


def test_a_component_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"places \['actor', 'env'\] but not rollout"):
        world_sizes({"component_placement": {"actor,env": 0}}, EIGHT)


@pytest.mark.parametrize("placement", ["a", "3-1", "0-x", "-1", "0:all-2"])
def test_a_placement_that_cannot_be_read_is_named(placement):
    with pytest.raises(ValueError, match=r"component_placement\.env,rollout,actor=.* is not a rank, a range"):
        sizes(placement)


def test_a_node_group_without_a_placement_is_refused():
    with pytest.raises(ValueError, match=r"'node_group': 'node'.*says no ranks; add placement"):
        sizes({"node_group": "node"})


def test_a_placement_of_nothing_is_refused():
    with pytest.raises(ValueError, match="places no process"):
        sizes("")


@pytest.mark.parametrize(
    ("nodes", "gpus", "group", "count"),
    [
        (1, 8, None, 8),
        (4, 8, None, 32),
        (4, 0, None, 4),
        (4, 8, "node", 4),
        (4, 8, "cluster", 32),
        (4, 8, "a800", 16),
        (4, 0, "a800", 2),
        (4, 8, "cpu", 1),
        (4, 8, "franka", 2),
        (4, 8, "a800, franka", 18),
        (4, 8, ["a800", "cpu"], 17),
    ],
)
def test_all_means_what_the_named_cluster_has(nodes, gpus, group, count):
    placement = "all" if group is None else {"node_group": group, "placement": "all"}
    assert sizes(placement, Machines(nodes=nodes, gpus=gpus), node_groups=ROBOTS) == count


def test_a_node_group_that_nobody_defines_is_named_with_those_that_are():
    with pytest.raises(
        ValueError, match=r"node_group='h100', but cluster\.node_groups has a800, cpu, franka"
    ):
        sizes({"node_group": "h100", "placement": "all"}, node_groups=ROBOTS)


def test_every_process_has_its_share_of_the_resources_in_order():
    placement = {"env": "0-3:0-1", "rollout": "4-5:0-3", "actor": "0-1,6-7"}
    found = assignments({"component_placement": placement}, EIGHT)
    ranks = {name: tuple(tuple(rank for _, rank in each) for each in found[name]) for name in found}
    assert ranks == {
        "env": ((0, 1), (2, 3)),
        "rollout": ((4,), (4,), (5,), (5,)),
        "actor": ((0,), (1,), (6,), (7,)),
    }


@pytest.mark.parametrize(
    ("gpus", "one", "other", "shared"),
    [
        (4, "8-11", {"node_group": "behind", "placement": "4-7"}, 4),
        (4, {"node_group": "a800", "placement": "6-7"}, {"node_group": "behind", "placement": "all"}, 2),
        (4, {"node_group": "a800", "placement": "all"}, {"node_group": "franka", "placement": "all"}, 0),
        (4, "0-1", {"node_group": "node", "placement": "0-1"}, 0),
        (0, "0-1", {"node_group": "node", "placement": "0-1"}, 2),
        (4, {"node_group": "cpu", "placement": 0}, {"node_group": "node", "placement": 1}, 1),
        (4, "15-17", "16-18", 2),
    ],
)
def test_a_resource_is_the_same_by_whichever_node_group_it_is_reached(gpus, one, other, shared):
    groups = [*ROBOTS, {"label": "behind", "node_ranks": "1-2"}]
    cluster = {"component_placement": {"actor": one, "rollout": other, "env": 0}, "node_groups": groups}
    places = occupancy(cluster, Machines(nodes=4, gpus=gpus))
    assert len(places["actor"].keys() & places["rollout"].keys()) == shared


def test_a_placement_beyond_a_cluster_is_refused_if_somebody_names_it_and_counted_if_it_is_assumed():
    named = Machines(nodes=2, gpus=4, named=True)
    assert sizes("0-7", named) == 8
    with pytest.raises(ValueError, match="=0-8: rank 8 is beyond the 8 that the cluster has there"):
        sizes("0-8", named)
    assert sizes("0-8", Machines(nodes=2, gpus=4)) == 9


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ("0-2:0-1", "2 processes and 3 resources do not divide"),
        ("0-1:1-2", "processes go on with 0, not with 1"),
    ],
)
def test_processes_that_rlinf_cannot_place_are_refused(placement, words):
    with pytest.raises(ValueError, match=words):
        sizes(placement)


@pytest.mark.parametrize("placement", ["0-999999999", "0-0:0-999999999", "999999999"])
def test_ranks_that_no_cluster_has_are_refused_and_not_counted_out(placement):
    with pytest.raises(ValueError, match=r"rank 999999999 is beyond any cluster; use ranks up to 100000"):
        sizes(placement)


def test_machines_are_at_most_what_a_cluster_has():
    with pytest.raises(ValueError, match="nodes=1000000000 must be from 1 to 10000; nearest: 10000"):
        Machines(nodes=10**9, gpus=8)


def test_machines_are_at_least_a_node():
    with pytest.raises(ValueError, match="nodes=0 must be from 1 to 10000; nearest: 1"):
        Machines(nodes=0, gpus=8)


@pytest.mark.parametrize(
    "group", [{"label": "a"}, {"node_ranks": 0}, {"label": None, "node_ranks": 0}, "a", 3]
)
def test_a_node_group_that_lacks_a_key_is_named(group):
    with pytest.raises(
        ValueError, match=r"^cluster\.node_groups\[0\]=.* must be a block with label and node"
    ):
        sizes(0, node_groups=[group])


@pytest.mark.parametrize("label", ["node", "cluster"])
def test_a_node_group_has_none_of_rlinfs_own_names(label):
    with pytest.raises(ValueError, match=rf"node_groups\[0\]\.label={label} is RLinf's own name"):
        sizes(0, node_groups=[{"label": label, "node_ranks": 0}])
    assert label in NodeGroupInfo.RESERVED_LABELS

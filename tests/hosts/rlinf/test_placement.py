from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf.scheduler import ComponentPlacement

from rlinf_async.hosts.rlinf.placement import world_sizes


def sizes(placement, resources=8):
    return world_sizes({"env,rollout,actor": placement}, resources=resources)["env"]


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
    assert world_sizes(placement, resources=2) == {"actor": 2, "rollout": 2, "env": 1}


def test_a_component_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"places \['actor', 'env'\] but not rollout"):
        world_sizes({"actor,env": 0}, resources=1)


@pytest.mark.parametrize("placement", ["a", "3-1", "0-x", "-1", "0:all-2"])
def test_a_placement_that_cannot_be_read_is_named(placement):
    with pytest.raises(ValueError, match=r"component_placement\.env,rollout,actor=.* is not a rank, a range"):
        sizes(placement)


def test_a_placement_of_nothing_is_refused():
    with pytest.raises(ValueError, match="places no process"):
        sizes("")

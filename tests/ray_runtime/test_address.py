"""Which Ray cluster a run is in."""

import pytest

from rlinf_async.ray_runtime.address import choose_cluster


@pytest.mark.parametrize(
    ("nodes", "join", "before", "after"),
    [
        (1, False, None, "local"),
        (1, False, "", "local"),
        (1, False, "auto", "auto"),
        (1, True, None, None),
        (1, True, "auto", "auto"),
        (2, False, None, None),
        (2, False, "local", "local"),
    ],
)
def test_a_run_on_one_node_has_a_cluster_of_its_own_unless_it_is_told_otherwise(nodes, join, before, after):
    environ = {} if before is None else {"RAY_ADDRESS": before}
    choose_cluster(nodes, join=join, environ=environ)
    assert environ.get("RAY_ADDRESS") == after


def test_a_cluster_that_is_named_has_to_answer():
    with pytest.raises(ValueError, match=r"nothing answers at RAY_ADDRESS=127\.0\.0\.1:1 "):
        choose_cluster(1, join=True, environ={"RAY_ADDRESS": "127.0.0.1:1"})


def test_joining_and_a_cluster_of_its_own_exclude_each_other():
    with pytest.raises(ValueError, match="unset RAY_ADDRESS"):
        choose_cluster(1, join=True, environ={"RAY_ADDRESS": "local"})

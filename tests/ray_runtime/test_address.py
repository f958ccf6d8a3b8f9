"""Which Ray cluster a run is in."""

import pytest

from rlinf_async.ray_runtime.address import choose_cluster


@pytest.mark.parametrize(
    ("own", "join", "before", "after"),
    [
        (True, False, None, "local"),
        (True, False, "", "local"),
        (True, False, "auto", "auto"),
        (True, True, None, None),
        (True, True, "auto", "auto"),
        (False, False, None, None),
        (False, False, "local", "local"),
    ],
)
def test_a_run_has_a_cluster_of_its_own_where_it_can_unless_it_is_told_otherwise(own, join, before, after):
    environ = {} if before is None else {"RAY_ADDRESS": before}
    choose_cluster(own=own, join=join, environ=environ)
    assert environ.get("RAY_ADDRESS") == after


def test_a_cluster_that_is_named_has_to_answer():
    with pytest.raises(ValueError, match=r"nothing answers at RAY_ADDRESS=127\.0\.0\.1:1 "):
        choose_cluster(own=True, join=True, environ={"RAY_ADDRESS": "127.0.0.1:1"})


def test_joining_and_a_cluster_of_its_own_exclude_each_other():
    with pytest.raises(ValueError, match="unset RAY_ADDRESS"):
        choose_cluster(own=True, join=True, environ={"RAY_ADDRESS": "local"})

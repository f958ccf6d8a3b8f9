"""The guard of process-wide state on the local host tells environments from the policy."""

import sys

import pytest
import torch

from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.hosts.policy_contract import keeping_defaults

BOTH = r"^the shard, or the policy meanwhile, have set torch's default type to torch.float64"


@pytest.fixture(autouse=True)
def put_back():
    limit = sys.getrecursionlimit()
    yield
    changed = torch.get_default_dtype() is not torch.float32 or sys.getrecursionlimit() != limit
    torch.set_default_dtype(torch.float32)
    sys.setrecursionlimit(limit)
    assert not changed, "the state was left as it was changed"


def change():
    torch.set_default_dtype(torch.float64)


def culprit():
    return "the shard"


def test_environments_alone_are_blamed_where_no_pass_has_ended():
    with pytest.raises(ValueError, match=r"^the shard have set torch's default type"):
        WholeProcess().call(culprit, change)


def test_a_pass_that_ends_while_environments_are_at_work_leaves_the_change_to_their_check():
    process = WholeProcess()

    def work():
        change()
        assert process.compute(lambda: 3) == 3

    with pytest.raises(ValueError, match=BOTH):
        process.call(culprit, work)


def test_a_change_by_the_learner_may_be_one_of_the_environments():
    process = WholeProcess()
    process.train(change)
    with pytest.raises(ValueError, match=BOTH):
        process.call(culprit, lambda: None)
    process.call(culprit, lambda: None)


def test_a_pass_is_blamed_alone_where_no_environments_are_at_work():
    with pytest.raises(ValueError, match=r"^its modules have set torch's default type"):
        WholeProcess().compute(change)


def test_a_pass_that_fails_leaves_no_change():
    def fail():
        change()
        raise KeyError("why")

    with pytest.raises(KeyError):
        WholeProcess().compute(fail)


def test_a_builder_may_not_lower_the_recursion_limit():
    limit = sys.getrecursionlimit()
    said = rf"^the package has lowered the recursion limit to 600, .* {limit}$"
    with pytest.raises(ValueError, match=said), keeping_defaults("the package"):
        sys.setrecursionlimit(600)

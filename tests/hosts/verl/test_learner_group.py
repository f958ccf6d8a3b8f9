"""The places of learner ranks, which veRL holds for as long as a process lives."""

from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="needs veRL")

from rlinf_async.hosts.verl import learner_group
from rlinf_async.hosts.verl.learner_group import LearnerGroup

pytestmark = pytest.mark.verl


def test_every_place_of_a_group_is_given_back(monkeypatch):
    removed = []
    monkeypatch.setattr(learner_group, "remove_placement_group", removed.append)
    LearnerGroup(SimpleNamespace(workers=[]), SimpleNamespace(pgs=["of node 0", "of node 1"])).give_back()
    assert removed == ["of node 0", "of node 1"]

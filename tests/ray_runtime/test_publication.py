"""How versions reach inference, by the way of each setting; without Ray."""

from types import SimpleNamespace

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.ray_runtime.publication import Publication


class Fleet:
    """Writes down what was asked of whom, in order."""

    def __init__(self):
        self.said = []
        self.watched = []

    def call(self, group, method, *arguments):
        self.said.append((group, method, *arguments))
        return [f"{group}.{method}"]

    def run(self, group, method, *arguments):
        self.call(group, method, *arguments)
        return [f"answer to {method}"]

    def watch(self, references, _):
        self.watched += references

    def wait(self, references, _):
        return references


def publication(fleet, *, transport=None, **block):
    asynchrony = AsyncConfig.from_mapping({"mode": "train", **block})
    settings = SimpleNamespace(
        asynchrony=asynchrony, publishes_beside_training=asynchrony.publication == "beside"
    )
    return Publication(fleet, settings, "coordinator", transport=transport)


def test_beside_training_the_learner_knows_its_receivers_before_it_offers_anything():
    fleet = Fleet()
    publication(fleet).first(4)
    assert fleet.said == [
        ("inference", "weight_types"),
        ("learner", "expect_receivers", "answer to weight_types"),
        ("learner", "offer_weights", 4, "coordinator"),
        ("learner", "weights_sent"),
        ("coordinator", "weights_published", 4),
    ]


def test_beside_training_a_version_that_cannot_be_sent_is_noticed_while_others_wait():
    fleet = Fleet()
    published = publication(fleet).follow(5)
    assert published == ["coordinator.weights_published"]
    assert fleet.watched == ["learner.weights_sent"]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_transport_of_the_framework_carries_a_version_before_the_gate_hears_of_it(deterministic):
    fleet = Fleet()
    by_host = publication(
        fleet,
        transport=lambda version: fleet.said.append(("carried", version)),
        publication="host",
        deterministic=deterministic,
    )
    by_host.first(1)
    assert fleet.said == [("carried", 1), ("coordinator", "publish", 1)]
    fleet.said.clear()
    by_host.follow(2)
    collected = [("coordinator", "collected", 2)] if deterministic else []
    assert fleet.said == [*collected, ("carried", 2), ("coordinator", "publish", 2)]


def test_a_transport_is_not_used_beside_training():
    fleet = Fleet()
    publication(fleet, transport=lambda version: fleet.said.append("carried")).follow(2)
    assert "carried" not in fleet.said


def test_the_transport_of_a_framework_that_has_none_is_refused():
    with pytest.raises(ValueError, match=r"async\.publication='host'.*use beside"):
        publication(Fleet(), publication="host")

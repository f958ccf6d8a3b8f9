"""How versions reach inference; without Ray."""

from rlinf_async.ray_runtime.driver.run import Publication


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


def test_the_learner_knows_its_receivers_before_it_offers_anything():
    fleet = Fleet()
    Publication(fleet, "coordinator", keeps=True).first(4)
    assert fleet.said == [
        ("inference", "weight_types"),
        ("learner", "expect_receivers", "answer to weight_types", True),
        ("learner", "offer_weights", 4, "coordinator"),
        ("learner", "weights_sent"),
        ("coordinator", "weights_published", 4),
    ]


def test_a_version_that_cannot_be_sent_is_noticed_while_others_wait():
    fleet = Fleet()
    published = Publication(fleet, "coordinator", keeps=True).follow(5)
    assert published == ["coordinator.weights_published"]
    assert fleet.watched == ["learner.weights_sent"]

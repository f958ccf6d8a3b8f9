"""Who is asked to leave the accelerators, and when."""

from types import SimpleNamespace

from rlinf_async.ray_runtime.driver.run import Turns


class Fleet:
    """Writes down what was asked of whom."""

    def __init__(self):
        self.said = []

    def call(self, name, method):
        return [f"{name}.{method}"]

    def wait(self, references, _):
        self.said += references


def turns(*, batches=3):
    fleet = Fleet()
    remote = SimpleNamespace(remote=lambda version: f"collected {version}")
    return Turns(fleet, SimpleNamespace(collected=remote), batches=batches), fleet.said


def test_the_others_leave_when_the_batch_is_collected_and_only_once_for_a_batch():
    keeper, said = turns()
    keeper.give_to_learner(0)
    keeper.give_to_learner(0)
    assert said == ["collected 1", "inference.leave", "env.leave"]
    keeper.give_to_learner(1)
    assert said[3:] == ["collected 2", "inference.leave", "env.leave"]


def test_after_the_last_batch_nothing_is_waited_for():
    keeper, said = turns(batches=2)
    keeper.give_to_learner(2)
    assert said == ["inference.leave", "env.leave"]

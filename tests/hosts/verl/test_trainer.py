"""The trainer gives metrics to veRL's loggers, and takes back the places of learner ranks."""

from types import SimpleNamespace

from rlinf_async.hosts.verl import learner_worker
from rlinf_async.hosts.verl.trainer import LastingTracking


class Tracking:
    def __init__(self):
        self.logged, self.codes, self.away = [], [], False

    def log(self, data, step):
        if self.away:
            raise ConnectionError("the server is away")
        self.logged.append((step, data))

    def finish(self, exit_code=0):
        self.codes.append(exit_code)


def test_batches_are_steps_from_one_and_the_end_has_the_status_of_the_run():
    inner = Tracking()
    tracking = LastingTracking(lambda: inner, say=lambda text: None)
    tracking.log(0, {"loss": 1.0})
    tracking.finish(exit_code=1)
    tracking.finish()  # veRL's own, when it is collected
    assert inner.logged == [(1, {"loss": 1.0})]
    assert inner.codes == [1]


def test_a_server_that_is_away_does_not_end_the_run():
    first, second, said = Tracking(), Tracking(), []
    made = iter([first, second])
    tracking = LastingTracking(lambda: next(made), say=said.append)
    first.away = True
    for batch in range(4):
        tracking.log(batch, {})
    tracking.finish()
    assert [step for step, _ in second.logged] == [3, 4]
    assert (first.codes, second.codes) == ([1], [0])
    assert "the server is away" in said[0]


def test_every_place_of_a_group_is_given_back(monkeypatch):
    removed = []
    monkeypatch.setattr(learner_worker, "remove_placement_group", removed.append)
    learner_worker.give_back(SimpleNamespace(resource_pool=SimpleNamespace(pgs=["of node 0", "of node 1"])))
    assert removed == ["of node 0", "of node 1"]

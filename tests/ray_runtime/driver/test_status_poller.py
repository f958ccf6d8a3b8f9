"""What the driver sees of its workers while it waits, with answers that the test gives."""

import json
from types import SimpleNamespace

import pytest
import ray

from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.driver import status_poller
from rlinf_async.ray_runtime.driver.status_poller import ANSWER_TIMEOUT_S, POLL_INTERVAL_S, StatusPoller


class World:
    """Workers, a clock, and what the driver said."""

    def __init__(self, monkeypatch, path, *, stall_s=60.0):
        self.now, self.answers, self.said, self.asked = 0.0, {}, [], 0
        self.dead, self.error = set(), ray.exceptions.ActorDiedError()
        monkeypatch.setattr(status_poller.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(status_poller.ray, "wait", self.wait)
        monkeypatch.setattr(status_poller.ray, "get", self.get)
        actors = {name: SimpleNamespace(doing=SimpleNamespace(remote=self.ask(name))) for name in ("a", "b")}
        self.path = path / "status.json"
        self.silent, self.watched = [], {"a", "b"}
        self.deaths = []
        self.poller = StatusPoller(
            lambda: actors,
            RunDir(path),
            stall_s=stall_s,
            silent_s=30.0,
            guard=SimpleNamespace(
                watches=self.watched.__contains__,
                silence=self.silent.append,
                death=lambda process, question: self.deaths.append((process, question)),
            ),
            say=self.said.append,
            step=lambda: (3, 9),
        )

    def ask(self, name):
        def remote():
            self.asked += 1
            return (name, self.asked)

        return remote

    def wait(self, references, *, num_returns, timeout):
        assert timeout == 0
        done = [reference for reference in references if reference[0] in self.answers]
        return done, [reference for reference in references if reference not in done]

    def get(self, reference):
        if reference[0] in self.dead:
            raise self.error
        return self.answers[reference[0]]

    def pass_time(self, seconds):
        give_up = self.now + seconds
        while self.now < give_up:
            self.now += min(self.poller.poll(), give_up - self.now) or 0.1
        self.poller.poll()

    @property
    def status(self):
        return json.loads(self.path.read_text())


def doing(ended, *spans):
    return {"pid": 1, "ended": ended, "open": list(spans)}


@pytest.fixture
def world(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path)
    world.now = POLL_INTERVAL_S
    return world


def test_the_workers_are_asked_every_few_seconds_and_their_answers_written_down(world):
    world.answers = {"a": doing(1), "b": doing(2)}
    world.pass_time(10 * POLL_INTERVAL_S)
    assert world.asked == pytest.approx(2 * 10, abs=4)
    assert (world.status["step"], world.status["total"]) == (3, 9)
    assert world.status["processes"] == world.answers
    assert world.said == []


def test_a_worker_that_does_not_answer_keeps_nobody_waiting(world):
    world.answers = {"a": doing(1)}
    world.pass_time(ANSWER_TIMEOUT_S + 1)
    assert world.status["processes"] == {"a": doing(1), "b": None}


def test_a_worker_that_has_died_is_reported_with_the_call_that_it_did_not_answer(world):
    world.answers, world.dead = {"a": doing(1), "b": None}, {"b"}
    world.pass_time(1.0)
    assert world.status["processes"] == {"a": doing(1), "b": None}
    assert world.deaths == [("b", ("b", 2))]


def test_a_worker_that_is_out_of_reach_is_not_reported_as_dead(world):
    world.answers, world.dead = {"a": doing(1), "b": None}, {"b"}
    world.error = ray.exceptions.ActorUnavailableError("the network is down", None)
    world.pass_time(1.0)
    assert world.status["processes"]["b"] is None
    assert world.deaths == []


def test_a_stall_is_said_once_and_then_at_growing_intervals(world):
    world.answers = {"a": doing(1, {"kind": "step", "seconds": 59.0, "shard": 4}), "b": doing(2)}
    world.pass_time(70.0)
    (notice,) = world.said
    assert notice.startswith("no activity has ended for 6")
    assert "a: shard 4 stepping for 59 s" in notice
    world.pass_time(500.0)
    assert len(world.said) == 4  # at 60, 120, 240 and 480 seconds


def test_whatever_ends_anywhere_ends_a_stall(world):
    world.answers = {"a": doing(1), "b": doing(2)}
    world.pass_time(70.0)
    world.answers = {"a": doing(1), "b": doing(3)}
    world.pass_time(50.0)
    assert len(world.said) == 1
    world.pass_time(20.0)
    assert len(world.said) == 2


def test_a_worker_that_fell_silent_is_no_progress(world):
    world.answers = {"a": doing(1), "b": doing(2)}
    world.pass_time(30.0)
    world.answers = {"a": doing(1)}
    world.pass_time(20.0)
    world.answers = {"a": doing(1), "b": doing(2)}
    world.pass_time(20.0)
    assert len(world.said) == 1


def test_a_worker_that_owes_an_answer_for_too_long_is_named_again_and_again(world):
    world.answers = {"a": doing(1)}
    world.pass_time(29.0)
    assert world.silent == []
    world.pass_time(10.0)
    assert world.silent == ["b"]
    world.pass_time(40.0)
    assert world.silent == ["b", "b"]


def test_a_late_answer_is_an_answer(world):
    world.answers = {"a": doing(1)}
    for _ in range(20):
        world.pass_time(10.0)
        world.answers["b"] = doing(1)  # to what it was asked first
        world.now += 0.1
        world.poller.poll()
        del world.answers["b"]
    assert world.silent == []


def test_nobody_is_named_who_need_not_answer_or_before_he_was_asked(world):
    world.answers = {"a": doing(1), "b": doing(1)}
    world.pass_time(10.0)
    world.now += 100.0  # the driver was busy
    world.poller.poll()
    del world.answers["b"]
    world.pass_time(10.0)
    assert world.silent == []
    world.watched.discard("b")
    world.pass_time(100.0)
    assert world.silent == []
    world.watched.add("b")
    world.pass_time(20.0)
    assert world.silent == []

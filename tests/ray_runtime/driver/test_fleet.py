"""What the driver waits for, with calls that end when the test says so, on a clock of its own."""

import pytest
import ray

from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.ray_runtime.driver import fleet as module
from rlinf_async.ray_runtime.driver.fleet import Fleet, Wait
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker


class Call:
    """A reference: it has ended once it has a result or an error."""

    def __init__(self, name):
        self.name, self.ended, self.result, self.error = name, False, None, None

    def end(self, result=None, error=None):
        self.ended, self.result, self.error = True, result, error

    def die(self):
        self.end(error=ray.exceptions.ActorDiedError())


class World:
    """A clock that passes only while somebody waits, and what happens on it."""

    def __init__(self, monkeypatch):
        self.now, self.events = 0.0, []
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "sleep", self.sleep)
        monkeypatch.setattr(module.ray, "wait", self.wait)
        monkeypatch.setattr(module.ray, "get", self.get)

    def at(self, when, what, *arguments, **named):
        self.events.append((when, lambda: what(*arguments, **named)))

    def sleep(self, seconds):
        give_up = self.now + seconds
        due = sorted((event for event in self.events if event[0] <= give_up), key=lambda event: event[0])
        self.now = due[0][0] if due else give_up
        for event in due[:1]:
            self.events.remove(event)
            event[1]()

    def wait(self, calls, *, num_returns, timeout):
        give_up = self.now + timeout
        while sum(call.ended for call in calls) < num_returns and self.now < give_up:
            self.sleep(give_up - self.now)
        done = [call for call in calls if call.ended][:num_returns]
        return done, [call for call in calls if call not in done]

    def get(self, call):
        if isinstance(call, list):
            return [self.get(one) for one in call]
        if call.error is not None:
            raise call.error
        return call.result


class Actor:
    """Ray's handle of a process; `made` are the calls of it, in order."""

    def __init__(self):
        self.made = []

    def __getattr__(self, name):
        def remote(*_):
            self.made.append(Call(name))
            return self.made[-1]

        return type("Method", (), {"remote": staticmethod(remote)})


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def fleet(*, deadline_s=1000.0, **groups):
    return Fleet(
        {name: [Actor() for _ in range(size)] for name, size in groups.items()}, deadline_s=deadline_s
    )


def kept(of, revive, name="env"):
    loops = of.call_framework(name, "loop")
    of.keep(name, loops, "loops", revive)
    return loops


def slowly(rank, died):
    """Bring nobody back for as long as a test lasts."""
    yield Wait(seconds=1000.0)


def test_a_death_among_what_is_not_kept_ends_every_wait(world):
    of = fleet(env=2)
    loops, other = of.call_framework("env", "loop"), Call("other")
    of.watch(loops, "loops")
    world.at(1.0, loops[1].die)
    with pytest.raises(ray.exceptions.ActorDiedError):
        of.wait([other], "something else")


def test_a_kept_loop_that_dies_is_that_of_its_successor_in_waits_that_had_begun(world):
    of, revived = fleet(env=2), Call("revived")

    def revive(rank, died):
        assert (rank, type(died)) == (1, ray.exceptions.ActorDiedError)
        yield Wait(seconds=5.0)
        built = Call("built")
        world.at(9.0, built.end)
        yield Wait(calls=[built], seconds=100.0)
        world.at(20.0, revived.end, "its result")
        return revived

    loops = kept(of, revive)
    world.at(1.0, loops[1].die)
    world.at(2.0, loops[0].end, "the result of the other")
    assert of.wait(loops, "the loops") == ["the result of the other", "its result"]
    assert world.now == 20.0


def test_who_is_given_up_has_nothing_to_say_and_the_others_go_on(world):
    of = fleet(inference=2)

    def revive(rank, died):
        yield Wait(seconds=5.0)

    loops = kept(of, revive, "inference")
    world.at(1.0, loops[1].end, error=ray.exceptions.ActorUnschedulableError("its node is lost"))
    world.at(9.0, loops[0].end, "its result")
    assert of.wait(loops, "the loops") == ["its result", None]
    before = len(of.actors("inference")[1].made)
    world.at(10.0, lambda: of.actors("inference")[0].made[-1].end("busy"))
    assert of.run_on_living("inference", InferenceWorker.pop_busy) == ["busy", None]
    assert len(of.actors("inference")[1].made) == before


def test_a_process_that_takes_the_place_of_another_is_called_from_then_on(world):
    of = fleet(env=2)
    before, after = of.actors("env")[1], fleet(env=1).actors("env")[0]
    of.replace("env", 1, after)
    calls = of.call("env", RunProcess.place)
    assert calls[1] is after.made[-1]
    assert before.made == []


def test_what_is_waited_for_meanwhile_comes_when_it_comes(world):
    of, other = fleet(env=1), Call("other")
    world.at(1.0, kept(of, slowly)[0].die)
    world.at(3.0, other.end, 7)
    assert of.wait([other], "something else") == [7]
    assert world.now == 3.0


def test_a_successor_that_dies_is_brought_back_too(world):
    of, deaths = fleet(env=1), []

    def revive(rank, died):
        deaths.append(world.now)
        yield Wait(seconds=1.0)
        successor = Call("successor")
        world.at(world.now + 2.0, successor.die if len(deaths) < 3 else successor.end)
        return successor

    loops = kept(of, revive)
    world.at(1.0, loops[0].die)
    of.wait(loops, "the loop")
    assert deaths == [1.0, 4.0, 7.0]


def test_the_first_error_of_what_a_revival_waits_for_is_raised_to_it(world):
    of, seen = fleet(env=1), []

    def revive(rank, died):
        broken = Call("broken")
        world.at(2.0, broken.end, error=ray.exceptions.ActorDiedError())
        try:
            yield Wait(calls=[broken], seconds=10.0)
        except ray.exceptions.RayActorError as error:
            seen.append(error)
        late = Call("late")
        try:
            yield Wait(calls=[late], seconds=10.0)
        except TimeoutError as error:
            seen.append(error)
        raise RuntimeError("it has died too often")

    loops = kept(of, revive)
    world.at(1.0, loops[0].die)
    with pytest.raises(RuntimeError, match="too often"):
        of.wait(loops, "the loop")
    assert [type(error) for error in seen] == [ray.exceptions.ActorDiedError, TimeoutError]
    assert world.now == 12.0


def test_who_has_died_or_dies_has_nothing_to_say_and_the_others_do(world):
    of = fleet(env=3)
    loops, other = kept(of, slowly), Call("other")
    world.at(1.0, loops[0].die)
    world.at(2.0, other.end)
    of.wait([other], "the death to be noticed")
    asked = [actor.made for actor in of.actors("env")]
    world.at(3.0, lambda: asked[1][-1].die())
    world.at(4.0, lambda: asked[2][-1].end("known"))
    assert of.run_on_living("env", ShardWorker.close_envs) == [None, None, "known"]
    assert [len(made) for made in asked] == [1, 2, 2]


def test_where_nobody_is_kept_a_death_is_raised_to_whoever_asks(world):
    of = fleet(env=2)
    world.at(1.0, lambda: of.actors("env")[0].made[-1].die())
    with pytest.raises(ray.exceptions.ActorDiedError):
        of.run_on_living("env", ShardWorker.close_envs)


def test_an_error_of_a_kept_loop_is_no_death_of_its_process(world):
    of = fleet(env=1)
    loops = kept(of, lambda rank, died: pytest.fail("nobody has died"))
    world.at(1.0, loops[0].end, error=PeerError("somebody else has failed"))
    with pytest.raises(PeerError):
        of.wait(loops, "the loop")


def test_that_a_loop_finds_another_process_dead_is_no_death_of_its_own(world):
    class Found(ray.exceptions.RayTaskError, ray.exceptions.ActorDiedError):
        def __init__(self):
            Exception.__init__(self)

    call = Call("loop")
    call.end(error=Found())
    assert module.death_of(call) is None
    call.die()
    assert module.death_of(call) is call.error


def test_whoever_is_let_go_is_not_brought_back(world):
    of, closed = fleet(env=3), []

    def revive(rank, died):
        try:
            yield from slowly(rank, died)
        finally:
            closed.append(rank)

    loops, other = kept(of, revive), Call("other")
    world.at(1.0, loops[0].die)
    world.at(2.0, other.end)
    of.wait([other], "the death to be noticed")
    of.let_go()
    assert closed == [0]
    world.at(3.0, loops[1].die)
    world.at(4.0, loops[2].end, "in order")
    assert of.wait(loops, "the loops") == [None, None, "in order"]


def test_a_wait_that_lasts_too_long_is_an_error_even_while_somebody_is_brought_back(world):
    of = fleet(env=1, deadline_s=30.0)

    def revive(rank, died):
        while True:
            yield Wait(seconds=1.0)

    loops = kept(of, revive)
    world.at(1.0, loops[0].die)
    with pytest.raises(DeadlineError, match="waited 30 s for the loop: 0 of 1 ranks are done"):
        of.wait(loops, "the loop")


class Mortal(Actor):
    """A process that answers, has died for good, or is being started again."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    @property
    def place(self):
        call = Call("place")
        call.end(error=self.answer)
        return type("Method", (), {"remote": staticmethod(lambda: call)})


def test_who_has_died_for_good_is_found_by_asking_everyone(world):
    died, restarting = (
        ray.exceptions.ActorDiedError(),
        ray.exceptions.ActorUnavailableError("soon", b"1" * 16),
    )
    of = Fleet({"env": [Mortal(restarting), Mortal(None)], "coordinator": [Mortal(died)]}, deadline_s=1000.0)
    assert of.deaths() == [died]


@pytest.mark.parametrize(
    ("initialized", "dead", "killed"), [(True, None, 3), (False, None, 0), (True, "the raylet", 0)]
)
def test_processes_are_ended_only_where_ray_is(monkeypatch, initialized, dead, killed):
    """Ray starts, or joins whatever cluster is there, for a call that comes after its end."""
    ended = []
    monkeypatch.setattr(module.ray, "is_initialized", lambda: initialized)
    monkeypatch.setattr(module.ray, "kill", ended.append)
    monkeypatch.setattr(module, "dead_process", lambda: dead)
    fleet(env=2, learner=1).kill()
    assert len(ended) == killed

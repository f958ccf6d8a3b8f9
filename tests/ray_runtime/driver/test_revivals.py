"""How a process is brought back, step by step, with calls that the test answers."""

import signal
from types import SimpleNamespace

import pytest
import ray

from rlinf_async.config import AsyncConfig
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.spans import UNRECORDED
from rlinf_async.ray_runtime.driver import revivals
from rlinf_async.ray_runtime.driver.fleet import Wait
from rlinf_async.ray_runtime.driver.revivals import Revivals
from rlinf_async.wire.memory import machine
from tests.making import plan, run_settings

HERE = machine()
LOOPS = {"env": "shards", "inference": "serving"}
DIED = ray.exceptions.RayActorError(error_msg="it was killed")

SOON = ray.exceptions.ActorUnavailableError("it is being started", None)


class Side:
    """Ray's handle of a process: writes down its calls, and answers them from a table or raises."""

    def __init__(self, name, said, **answers):
        self.name, self._said, self.answers = name, said, answers

    def __getattr__(self, method):
        def remote(*arguments, **named):
            self._said.append((self.name, method, *arguments, *named.values()))
            answer = self.answers.get(method)
            return answer.pop(0) if isinstance(answer, list) else answer

        return SimpleNamespace(remote=remote)


class World:
    def __init__(self, monkeypatch, path, *, places, **survive):
        self.said, self.notes, self.killed, self.now = [], [], [], 100.0
        asynchrony = AsyncConfig.from_mapping({"mode": "full", "survive": survive})
        layout = plan(total_envs=4, env_workers=2, inference_ranks=2, shards_per_worker=2)
        self.settings = run_settings(asynchrony=asynchrony, plan=layout)
        self.groups = groups = {
            group: [
                Side(f"{group} {rank}", self.said, place=places, go_on_as=LOOPS[group]) for rank in range(2)
            ]
            for group in ("env", "inference")
        }
        self.channels = {"first": Side("requests", self.said)}
        self.elsewhere = []
        """What the host answers, turn by turn, when an env worker is to be started on another node."""
        fleet = SimpleNamespace(
            actors=groups.__getitem__,
            run=lambda *_: [(HERE, 10), (HERE, 11)],
            replace=lambda group, rank, actor: groups[group].__setitem__(rank, actor),
            watch=lambda calls, purpose: self.watched.append((*calls, purpose)),
        )
        self.watched = []
        self.revivals = Revivals(
            fleet,
            self.settings,
            requests=self.channels,
            coordinator=Side("coordinator", self.said, shards_lost=2),
            rebuild={"env": "init_again", "inference": "init_worker"},
            elsewhere={"env": lambda rank: self.elsewhere.pop(0)},
            run_dir=path,
            say=self.notes.append,
        )
        self.path = path
        self.revivals.join(UNRECORDED)
        self.revivals.working = True
        monkeypatch.setattr(revivals.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(revivals.ray, "get", self.get)
        monkeypatch.setattr(
            revivals.ray, "kill", lambda actor, no_restart: self.killed.append((actor.name, no_restart))
        )
        monkeypatch.setattr(revivals.os, "kill", lambda pid, sent: self.killed.append((pid, sent)))

    def get(self, answer):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self, group, rank):
        """Go through a revival; its loop. Calls whose answer is an error fail with it."""
        if group == "requests":
            return self.play(self.revivals.without_channel(rank, DIED))
        return self.play(self.revivals.begin(group, rank, DIED))

    def play(self, steps):
        try:
            wait = next(steps)
            while True:
                assert isinstance(wait, Wait)
                self.now += 0.0 if wait.calls else wait.seconds
                errors = [answer for answer in wait.calls if isinstance(answer, BaseException)]
                wait = steps.throw(errors[0]) if errors else steps.send(None)
        except StopIteration as came:
            return came.value


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path, places=[SOON, (HERE, 12)])


def calls(world):
    return [(who, what) for who, what, *_ in world.said]


def test_an_env_worker_is_forgotten_everywhere_before_its_successor_is_built(world):
    assert world.run("env", 1) == "shards"
    assert world.said[:2] == [
        ("coordinator", "shards_lost", [2, 3], 1),
        ("requests", "shards_lost", [2, 3, 6, 7], 1),  # those of evaluation are numbered on
    ]
    assert calls(world)[2:] == [
        ("env 1", "place"),
        ("env 1", "place"),
        ("env 1", "join_run"),
        ("env 1", "init_again"),
        ("env 1", "go_on_as"),
    ]
    joined = next(said for said in world.said if said[1] == "join_run")
    assert joined[2:4] + joined[-1:] == ("env worker 1", str(world.path), 1)
    assert world.said[-1][2:5] == (1, "run_shards", world.settings)
    assert world.killed == []


def test_an_inference_rank_is_built_and_serves_again(world):
    assert world.run("inference", 0) == "serving"
    assert world.said[:2] == [("requests", "rank_lost", 0, 1), ("coordinator", "rank_lost", 0, 1)]
    assert calls(world)[-3:] == [
        ("inference 0", "join_run"),
        ("inference 0", "init_worker"),
        ("inference 0", "go_on_as"),
    ]


def test_it_is_said_counted_and_recorded_with_what_was_lost(world):
    spans = []
    world.revivals.join(SimpleNamespace(add=lambda *names, **facts: spans.append((names, facts))))
    world.run("env", 1)
    # `process` would be another one's, to a reader of spans.
    assert spans == [(("restart", 100.0), {"worker": "env worker 1", "error": "RayActorError"})]
    (fault,) = read_faults(world.path)
    assert (fault.process, fault.what, fault.lost) == (
        "env worker 1",
        "env worker died",
        "2 rollouts",
    )
    assert fault.action == "started again in its place"
    assert "it was killed" in fault.error
    assert world.notes == [
        "env worker 1: env worker died; it is started again",
        "env worker 1 is back after 1 s; lost: 2 rollouts",
    ]
    assert world.revivals.pop_metrics() == {"async/restarts/env_worker": 1.0, "async/restarts/inference": 0.0}
    assert sum(world.revivals.pop_metrics().values()) == 0


def test_before_the_first_step_a_death_ends_the_run(world):
    world.revivals.working = False
    with pytest.raises(RuntimeError, match="env worker 0 has died before a step was trained") as ended:
        world.run("env", 0)
    assert ended.value.__cause__ is DIED
    assert world.said == []


def test_a_process_that_ray_cannot_start_ends_the_run(monkeypatch, tmp_path):
    broken = ray.exceptions.ActorDiedError()
    world = World(monkeypatch, tmp_path, places=[broken])
    with pytest.raises(RuntimeError, match="cannot be started again") as ended:
        world.run("env", 0)
    assert ended.value.__cause__ is broken


NOWHERE = ray.exceptions.ActorUnschedulableError("its node doesn't exist any more")


@pytest.fixture
def half_lost(monkeypatch, tmp_path):
    """A run of which a node is lost: Ray notices a little later than the processes there are missed."""
    monkeypatch.setattr(revivals, "lost_nodes", lambda: "10.0.0.2")
    return World(monkeypatch, tmp_path, places=[SOON, NOWHERE, NOWHERE])


def test_an_inference_rank_whose_node_is_lost_is_given_up_while_another_is_left(half_lost):
    assert half_lost.run("inference", 1) is None
    assert half_lost.said[:2] == [("requests", "rank_lost", 1, 1), ("coordinator", "rank_lost", 1, 1)]
    assert calls(half_lost)[2:] == [("inference 1", "place"), ("inference 1", "place")]
    said = "inference rank 1 is given up, as its node is lost (10.0.0.2); 1 of 2 inference ranks go on"
    assert half_lost.notes[-1] == said
    (fault,) = read_faults(half_lost.path)
    assert (fault.process, fault.what, fault.action) == ("inference rank 1", "node lost", "given up")
    assert not half_lost.revivals.watches("inference rank 1")
    assert half_lost.revivals.watches("inference rank 0")
    assert sum(half_lost.revivals.pop_metrics().values()) == 0
    with pytest.raises(RuntimeError, match=r"inference rank 0 cannot be started again: its node is lost"):
        half_lost.run("inference", 0)


def test_an_env_worker_whose_node_is_lost_is_started_on_another(half_lost):
    there = Side("there", half_lost.said, place=[(HERE, 11)], go_on_as="shards")
    half_lost.elsewhere = [(there, "10.0.0.3")]
    assert half_lost.run("env", 1) == "shards"
    assert half_lost.groups["env"][1] is there
    assert calls(half_lost)[2:] == [
        *(("env 1", "place"), ("env 1", "place")),
        # Of the same number as the dead, which was on another node.
        *(("there", "place"), ("there", "join_run"), ("there", "init_again"), ("there", "go_on_as")),
    ]
    assert half_lost.killed == []
    assert half_lost.notes[1:] == [
        "env worker 1 is started on 10.0.0.3, as its node is lost (10.0.0.2)",
        "env worker 1 is back after 1 s; lost: 2 rollouts",
    ]
    (fault,) = read_faults(half_lost.path)
    assert (fault.what, fault.action) == ("node lost", "started again on 10.0.0.3")
    assert fault.lost == "2 rollouts"
    assert half_lost.revivals.pop_metrics()["async/restarts/env_worker"] == 1.0


def test_where_the_other_node_is_lost_as_well_a_third_is_asked_for(half_lost):
    second = Side("second", half_lost.said, place=[NOWHERE])
    third = Side("third", half_lost.said, place=[(HERE, 9)], go_on_as="shards")
    half_lost.elsewhere = [(second, "10.0.0.3"), (third, "10.0.0.4")]
    assert half_lost.run("env", 0) == "shards"
    assert half_lost.groups["env"][0] is third
    assert [fault.action for fault in read_faults(half_lost.path)] == ["started again on 10.0.0.4"]


def test_a_run_ends_where_no_other_node_may_hold_an_env_worker_whose_node_is_lost(half_lost):
    half_lost.elsewhere = [None]
    with pytest.raises(
        RuntimeError,
        match=r"env worker 0 cannot be started again: its node is lost \(10\.0\.0\.2\), and no remaining",
    ) as ended:
        half_lost.run("env", 0)
    assert ended.value.__cause__ is NOWHERE
    assert [fault.action for fault in read_faults(half_lost.path)] == ["the run ends"]


def test_over_the_budget_the_run_ends_with_the_death_and_the_count(monkeypatch, tmp_path):
    world = World(
        monkeypatch, tmp_path, places=[(HERE, number) for number in range(12, 20)], process_restarts=2
    )
    world.run("inference", 1)
    world.run("inference", 1)
    with pytest.raises(
        RuntimeError, match="inference rank 1 has died 3 times within 600 s, more than"
    ) as ended:
        world.run("inference", 1)
    assert ended.value.__cause__ is DIED
    assert [fault.action for fault in read_faults(tmp_path)][-1] == "the run ends"
    world.run("inference", 0)  # each has a budget of its own


def test_a_process_that_is_only_out_of_reach_is_ended_before_it_is_counted_as_dead(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, places=[(HERE, 11), (HERE, 12)])
    world.run("env", 1)
    assert world.killed == [("env 1", False), (11, signal.SIGKILL)]


def test_a_successor_that_dies_while_it_is_built_is_brought_back_as_another_generation(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, places=[(HERE, 12), (HERE, 13)])
    world.groups["env"][1].answers["init_again"] = [DIED, None]
    assert world.run("env", 1) == "shards"
    lost = [said for said in world.said if said[:2] == ("coordinator", "shards_lost")]
    assert [generation for *_, generation in lost] == [1, 2]
    assert world.now == 100.0 + 0.5 + 1.0  # the second wait is twice the first


def test_a_silent_process_is_ended_and_recorded_as_silent(world):
    assert world.revivals.watches("env worker 1")
    world.revivals.silence("env worker 1")
    assert world.killed == [("env 1", False), (11, signal.SIGKILL)]
    world.run("env", 1)
    (fault,) = read_faults(world.path)
    assert fault.what == "silent"


def test_every_process_of_a_run_has_to_answer_but_not_while_it_is_built(world):
    assert world.revivals.watches("learner rank 0")
    assert not world.revivals.watches("driver")
    steps = world.revivals.begin("env", 0, DIED)
    next(steps)
    assert not world.revivals.watches("env worker 0")
    assert world.revivals.watches("env worker 1")
    world.revivals.working = False
    assert not world.revivals.watches("env worker 1")


@pytest.mark.parametrize("process", ["learner rank 1", "request channel 0", "coordinator 0"])
def test_the_silence_of_one_that_cannot_be_brought_back_ends_the_run_and_it(world, process):
    with pytest.raises(RuntimeError, match=f"{process} has not answered for 100 s"):
        world.revivals.silence(process)
    assert world.killed == [(11 if process.endswith("1") else 10, signal.SIGKILL)]
    (fault,) = read_faults(world.path)
    assert (fault.process, fault.what, fault.action) == (process, "silent", "the run ends")


@pytest.mark.parametrize("process", ["learner rank 1", "request channel 0", "coordinator 0"])
def test_the_death_of_one_that_cannot_be_brought_back_is_raised_by_every_wait(world, process):
    world.revivals.death(process, "question")
    assert world.watched == [("question", f"an answer of {process}")]


def test_the_death_of_an_env_worker_is_left_to_the_wait_for_its_loop(world):
    world.revivals.death("env worker 1", "question")
    assert world.watched == []


def test_the_silence_of_an_env_worker_ends_a_run_that_brings_nobody_back(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, places=[], process_restarts=0)
    with pytest.raises(RuntimeError, match="env worker 1 has not answered for 100 s"):
        world.revivals.silence("env worker 1")
    assert world.killed == [(11, signal.SIGKILL)]


@pytest.mark.parametrize(
    ("block", "groups"), [({}, {"env", "inference"}), ({"survive": {"process_restarts": 0}}, set())]
)
def test_what_can_be_started_again_follows_from_the_config(block, groups):
    asynchrony = AsyncConfig.from_mapping({"mode": "full", **block})
    assert run_settings(asynchrony=asynchrony).restartable == groups


@pytest.fixture
def on_two_nodes(world, monkeypatch):
    """A run of which a second node has a request channel of its own."""
    monkeypatch.setattr(revivals, "lost_nodes", lambda: "10.0.0.2")
    monkeypatch.setattr(revivals, "is_lost", lambda node: node in world.lost)
    world.lost = set()
    world.channels["second"] = Side("other requests", world.said)
    for side in (*world.groups["env"], *world.groups["inference"]):
        side.answers["place"] = (HERE, 12)
    return world


def test_every_request_channel_is_told_of_a_death(on_two_nodes):
    on_two_nodes.run("inference", 1)
    on_two_nodes.run("env", 1)
    shards = [2, 3, 6, 7]
    assert [said for said in on_two_nodes.said if said[1] in ("rank_lost", "shards_lost")] == [
        ("requests", "rank_lost", 1, 1),
        ("other requests", "rank_lost", 1, 1),
        ("coordinator", "rank_lost", 1, 1),
        ("coordinator", "shards_lost", [2, 3], 1),
        ("requests", "shards_lost", shards, 1),
        ("other requests", "shards_lost", shards, 1),
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_one_of_several_request_channels_is_left_to_the_wait_for_its_call(on_two_nodes, rank):
    on_two_nodes.revivals.death(f"request channel {rank}", "question")
    assert on_two_nodes.watched == []


@pytest.mark.parametrize("died", [DIED, NOWHERE, SOON], ids=["died", "its node is lost", "out of reach"])
def test_a_channel_that_was_lost_with_its_node_need_not_be_told(on_two_nodes, died):
    on_two_nodes.channels["second"].answers |= {"rank_lost": died, "shards_lost": died}
    assert on_two_nodes.run("inference", 1) == "serving"
    assert on_two_nodes.run("env", 1) == "shards"


def test_but_the_channel_of_the_drivers_node_must_be(on_two_nodes):
    on_two_nodes.channels["first"].answers["rank_lost"] = DIED
    with pytest.raises(ray.exceptions.RayActorError, match="it was killed"):
        on_two_nodes.run("inference", 1)


def test_the_run_goes_on_without_the_channel_of_a_node_when_ray_knows_that_the_node_is_lost(on_two_nodes):
    on_two_nodes.channels["second"].answers["place"] = DIED
    steps = on_two_nodes.revivals.without_channel(1, DIED)
    for _ in range(3):
        assert next(steps).calls == (DIED,)
        assert steps.throw(DIED).seconds == 0.5
        assert not on_two_nodes.revivals.watches("request channel 1")
    on_two_nodes.lost.add("second")
    assert on_two_nodes.play(steps) is None
    assert on_two_nodes.notes == ["request channel 1 is given up, as its node is lost (10.0.0.2)"]
    (fault,) = read_faults(on_two_nodes.path)
    assert (fault.process, fault.what, fault.action) == (*("request channel 1", "node lost", "given up"),)


@pytest.mark.parametrize(("rank", "seconds"), [(0, 0.0), (1, 600.0)])
def test_the_death_of_a_channel_whose_node_lives_ends_the_run(on_two_nodes, rank, seconds):
    for channel in on_two_nodes.channels.values():
        channel.answers["place"] = DIED
    began = on_two_nodes.now
    with pytest.raises(ray.exceptions.RayActorError, match="it was killed"):
        on_two_nodes.run("requests", rank)
    start_s = on_two_nodes.settings.asynchrony.advanced.start_s
    assert on_two_nodes.now - began == pytest.approx(seconds and start_s, abs=1.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_channel_to_which_only_the_connection_was_lost_goes_on(on_two_nodes, rank):
    channel = list(on_two_nodes.channels.values())[rank]
    channel.answers |= {"place": [SOON, SOON, (HERE, 3)], "stay": "it stays"}
    assert on_two_nodes.run("requests", rank) == "it stays"
    assert on_two_nodes.revivals.watches(f"request channel {rank}")


def test_what_ray_says_of_its_calls_is_no_reason_of_a_death():
    lost = ray.exceptions.ActorUnavailableError("RPC error: Socket closed rpc_code: 14", None)
    assert revivals.death_in_words(lost) == revivals.UNSAID_DEATH
    assert "it was killed" in revivals.death_in_words(DIED)

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product

import pytest

from rlinf_async.config import AsyncConfig, SurviveConfig
from rlinf_async.core.failures import PeerError, ShardFailure
from rlinf_async.core.types import Ticket
from rlinf_async.lab.virtual.run import predict
from rlinf_async.loops import env as module
from rlinf_async.loops.env import env_loop, placing, run_shard
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.evaluation import evaluate_shard
from rlinf_async.loops.renewal import Renewal
from rlinf_async.loops.together import together
from tests.lab.virtual.given import settings, times
from tests.loops.virtual import run
from tests.making import piece, plan, run_settings, ticket


class Story:
    """An environment, a policy, a gate and a recorder that write down what is asked of them."""

    horizon = 2

    def __init__(self, tickets=(), breaks=0):
        self.lines, self._tickets, self._breaks = [], list(tickets), breaks
        self._shown = 0

    async def start(self):
        self._shown = 0
        self.lines.append("start")
        return "o0"

    async def step(self, answer):
        if self._breaks:
            self._breaks -= 1
            raise ShardFailure("environments failed") from ZeroDivisionError()
        self._shown += 1
        self.lines.append(f"step {answer}")
        return f"o{self._shown}"

    def waiting(self, output):
        return 3

    def observation(self, output):
        return output.upper()

    async def finish(self):
        self.lines.append("finish")

    @asynccontextmanager
    async def rollout(self, shard):
        self.lines.append(f"in flight {shard}")
        try:
            yield
        finally:
            self.lines.append(f"landed {shard}")

    async def act(self, request):
        assert (request.shard, request.size) == (7, 3)
        self.lines.append(f"ask {request.payload} {request.mode}")
        return request.payload.replace("O", "a")

    async def admit(self, shard):
        return self._tickets.pop(0) if self._tickets else None

    async def put(self, given, pieces):
        (built,) = pieces
        self.lines.append(f"put {given.batch} {built.payload}")

    async def abandon(self, given, reason):
        self.lines.append(f"abandon {given.batch} {reason}")
        self._tickets.insert(0, given)

    async def restart(self):
        self.lines.append("restart")

    def append(self, output, answer):
        self.lines.append(f"record {output} {answer}")

    async def complete(self, output):
        """Nothing comes late."""

    def build(self, output, answer):
        return [piece(ticket(), payload=f"{output} {answer}")]


def collect(story, **options):
    parts = {"env": story, "policy": story, "trajectories": story, "recorder": lambda given: story}
    run(run_shard(shard=7, **parts | options))


def test_a_rollout_records_every_decision_and_closes_with_the_value_of_the_last_output():
    story = Story([ticket(batch=4)])
    collect(story)
    assert story.lines == [
        "in flight 7",
        "start",
        "ask O0 train",
        "record o0 a0",
        "step a0",
        "ask O1 train",
        "record o1 a1",
        "step a1",
        "finish",
        "ask O2 train",
        "landed 7",
        "put 4 o2 a2",
    ]


def test_a_shard_collects_until_the_gate_closes():
    story = Story([ticket(batch=0), ticket(batch=1)])
    collect(story)
    assert [line for line in story.lines if line.startswith("put")] == ["put 0 o2 a2", "put 1 o2 a2"]


def test_every_rollout_has_a_recorder_of_its_own_ticket():
    given = []
    story = Story([ticket(batch=0), ticket(batch=1)])
    collect(story, recorder=lambda one: given.append(one.batch) or story)
    assert given == [0, 1]


def test_what_comes_before_a_rollout_is_told_its_ticket_and_may_fail_like_its_environments():
    story = Story([ticket(batch=4)])

    async def before(given):
        story.lines.append(f"before {given.batch}")
        if story.lines.count("before 4") == 1:
            raise ShardFailure("they cannot be built", what="env failed")

    collect(story, before=before, restarts=restarts())
    assert story.lines[:5] == ["before 4", "abandon 4 env failed", "restart", "before 4", "in flight 7"]


class SlowEnd(Story):
    """A start takes a second, the value of a last output ten, everything else no time."""

    async def start(self):
        output = await super().start()
        await asyncio.sleep(1.0)
        return output

    async def act(self, request):
        answer = await super().act(request)
        await asyncio.sleep(10.0 if request.payload == "O2" else 0.0)
        return answer

    @property
    def told(self):
        return [line for line in self.lines if line.startswith(("start", "put", "abandon", "restart"))]


@pytest.mark.parametrize(
    ("overlaps", "told"),
    [
        (False, ["start", "put 0 o2 a2", "start", "put 1 o2 a2", "start", "put 2 o2 a2"]),
        (True, ["start", "start", "put 0 o2 a2", "start", "put 1 o2 a2", "put 2 o2 a2"]),
    ],
)
def test_with_overlaps_a_rollout_begins_beside_the_end_of_the_one_before_and_of_no_other(overlaps, told):
    story = SlowEnd([ticket(batch=batch) for batch in range(3)])
    collect(story, overlaps=overlaps)
    assert story.told == told


def test_what_is_asked_for_last_is_what_was_shown_last_whatever_the_environments_show_by_then():
    class Changing(SlowEnd):
        async def start(self):
            self.seen = "seen later"
            return await super().start()

        def observation(self, output):
            return f"{output} {self.seen}" if output == "o2" else super().observation(output)

        async def step(self, answer):
            self.seen = "seen then"
            return await super().step(answer)

    story = Changing([ticket(batch=0), ticket(batch=1)])
    collect(story, overlaps=True)
    assert story.lines.count("ask o2 seen then train") == 2


def test_a_rollout_that_is_refused_after_the_gate_has_closed_is_collected_again():
    class Refused(SlowEnd):
        async def put(self, given, pieces):
            await super().put(given, pieces)
            if self.told.count("put 1 o2 a2") == 1 and given.batch == 1:
                self._tickets.append(given)

    story = Refused([ticket(batch=0), ticket(batch=1)])
    collect(story, overlaps=True)
    assert story.told[-4:] == ["put 0 o2 a2", "put 1 o2 a2", "start", "put 1 o2 a2"]


class NotFinite(SlowEnd):
    """The first rollout holds numbers that are not finite."""

    def build(self, output, answer):
        if "restart" in self.lines:
            return super().build(output, answer)
        raise ShardFailure("rewards that are not finite", what="not finite")


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_rollout_of_numbers_that_are_not_finite_is_given_up_for_that_and_collected_again(overlaps):
    story = NotFinite([ticket(batch=4)])
    collect(story, overlaps=overlaps, restarts=restarts())
    assert story.told == ["start", "abandon 4 not finite", "restart", "start", "put 4 o2 a2"]


def test_environments_that_fail_while_their_shard_waits_at_the_gate_are_built_anew_before_they_are_started():
    class Waiting(NotFinite):
        async def admit(self, shard):
            await asyncio.sleep(30.0 if self.told else 0.0)
            return await super().admit(shard)

    story = Waiting([ticket(batch=0), ticket(batch=1)])
    collect(story, overlaps=True, restarts=restarts())
    assert story.told == [
        *("start", "abandon 0 not finite", "restart"),
        *("start", "put 0 o2 a2", "start", "put 1 o2 a2"),
    ]


def test_a_failure_at_the_end_of_a_rollout_ends_a_shard_that_waits_at_the_gate():
    class Deaf(SlowEnd):
        async def act(self, request):
            answer = await super().act(request)
            if request.payload == "O2":
                raise PeerError("inference failed")
            return answer

        async def admit(self, shard):
            return self._tickets.pop(0) if self._tickets else await asyncio.Event().wait()

    with pytest.raises(PeerError, match="inference failed"):
        collect(Deaf([ticket()]), overlaps=True)


def restarts(**survive):
    return ShardRestarts(7, SurviveConfig(**survive), worked=True)


def test_a_rollout_whose_environments_fail_is_given_up_and_collected_again_when_they_are_built_anew():
    story = Story([ticket(batch=4)], breaks=1)
    collect(story, restarts=restarts())
    given_up = story.lines.index("landed 7")
    anew = ["landed 7", "abandon 4 env failed", "restart", "in flight 7", "start"]
    assert story.lines[given_up : given_up + 5] == anew
    assert [line for line in story.lines if line.startswith("put")] == ["put 4 o2 a2"]


def test_a_completed_rollout_counts_as_work():
    class FailsTwiceOnceItHasWorked(Story):
        async def put(self, given, pieces):
            await super().put(given, pieces)
            self._breaks = 2 * (given.batch == 0)

    story = FailsTwiceOnceItHasWorked([ticket(batch=0), ticket(batch=1)])
    collect(story, restarts=ShardRestarts(7, SurviveConfig()))
    assert [line for line in story.lines if line.startswith(("restart", "put"))] == [
        *("put 0 o2 a2", "restart", "restart", "put 1 o2 a2")
    ]


def test_errors_that_are_not_the_environments_own_are_raised():
    class Deaf(Story):
        async def act(self, request):
            raise PeerError("inference failed")

    story = Deaf([ticket()])
    with pytest.raises(PeerError):
        collect(story, restarts=restarts())
    assert "restart" not in story.lines


def test_a_rollout_of_an_evaluation_is_run_again_when_environments_fail():
    story = Story(breaks=1)
    run(evaluate_shard(shard=7, env=story, policy=story, rollouts=2, restarts=restarts()))
    assert [story.lines.count(word) for word in ("restart", "finish", "start")] == [1, 2, 3]


def test_a_shard_whose_environment_fails_is_no_longer_in_flight():
    story = Story([ticket()], breaks=1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        collect(story)
    assert story.lines[-2:] == ["landed 7", "abandon 0 env failed"]


def test_evaluation_asks_for_evaluation_actions_and_hands_nothing_over():
    story = Story()
    run(evaluate_shard(shard=7, env=story, policy=story, rollouts=2))
    once = ["in flight 7", "start", "ask O0 eval", "step a0", "ask O1 eval", "step a1", "landed 7", "finish"]
    assert story.lines == once * 2


async def fails(error, after=0.0):
    await asyncio.sleep(after)
    raise error


def test_loops_run_side_by_side_to_their_ends():
    ends = []

    async def loop(seconds):
        await asyncio.sleep(seconds)
        ends.append(seconds)

    run(together([loop(3.0), loop(1.0), loop(2.0)]))
    assert ends == [1.0, 2.0, 3.0]


def test_the_first_failure_ends_the_other_loops_and_is_raised_by_itself():
    ended = []

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ZeroDivisionError):
        run(together([waits(), fails(ZeroDivisionError(), after=1.0)]))
    assert ended == [True]


def test_the_cause_is_raised_rather_than_its_echo():
    with pytest.raises(KeyError):
        run(together([fails(PeerError("echo")), fails(KeyError("cause"))]))


def test_a_loop_that_says_it_was_cancelled_and_was_not_is_a_failure_and_no_silent_end():
    async def others():
        await asyncio.sleep(60)

    with pytest.raises(RuntimeError, match="with a CancelledError, although its task was not cancelled"):
        run(together([fails(asyncio.CancelledError()), others()]))


TICKET = Ticket(shard=1, batch=3, epoch=0, place=0, version=2)


class Shard:
    """Notes what it is told before a rollout."""

    def __init__(self):
        self.told = []

    def take_on(self, place, rollout):
        self.told.append(("take on", place, rollout))

    def stand_at(self, place, rollout):
        self.told.append(("stand at", place, rollout))

    async def renew(self, step):
        self.told.append(("renew", step))


@pytest.fixture
def loop_of(monkeypatch):
    """The arguments that `run_shard` is given for a shard of a run."""

    def given(run_settings, **more):
        seen = {}

        async def run_shard(**arguments):
            seen.update(arguments)
            await arguments["before"](TICKET)

        monkeypatch.setattr(module, "run_shard", run_shard)
        run(env_loop(run_settings, 1, Shard(), **more))
        return seen

    return given


DETERMINISTIC = {"mode": "train", "deterministic": True}


@pytest.mark.parametrize(
    ("block", "save_every", "overlaps", "told"),
    [
        ({"mode": "train"}, 2, False, [("stand at", 0, 3)]),
        ({"mode": "full"}, 2, True, [("stand at", 0, 3)]),
        ({"mode": "full", "advanced": {"balance": "tasks"}}, 0, True, [("take on", 0, 3)]),
        (DETERMINISTIC, 0, False, [("stand at", 0, 3)]),
        (DETERMINISTIC, 2, False, [("stand at", 0, 3), ("renew", 2)]),
        (DETERMINISTIC, 3, False, [("stand at", 0, 3)]),
    ],
)
def test_before_a_rollout_a_shard_is_told_its_tasks_or_its_place_and_renewed_at_a_checkpoint(
    loop_of, block, save_every, overlaps, told
):
    seen = loop_of(replace(settings(block), save_every=save_every), policy="its own")
    assert (seen["shard"], seen["overlaps"], seen["policy"]) == (1, overlaps, "its own")
    assert seen["env"].told == told


def test_a_planned_run_renews_nothing_at_the_checkpoints_of_the_run_that_it_predicts():
    saving = replace(settings(DETERMINISTIC), save_every=2)
    planned = predict(saving, times())
    assert planned.trained_at == predict(settings(DETERMINISTIC), times()).trained_at


async def test_tasks_are_those_of_the_place_and_the_number_of_the_rollout_whoever_collects_it():
    shard = Shard()
    before = placing(shard.take_on, plan(rollout_epochs=3))
    for batch, epoch in product(range(4), range(3)):
        await before(Ticket(shard=0, batch=batch, epoch=epoch, place=1, version=0))
    assert shard.told == [("take on", 1, number) for number in range(12)]


def renewal_of(renew, *, deterministic=True, save_every=2):
    asynchrony = AsyncConfig.from_mapping({"mode": "train", "deterministic": deterministic})
    return Renewal(run_settings(asynchrony=asynchrony, save_every=save_every), renew)


@pytest.mark.parametrize(
    ("changes", "versions", "renewed"),
    [
        ({}, [0, 0, 1, 1, 2, 2, 3, 4, 4], [2, 4]),
        ({"save_every": 1}, [0, 1, 1, 2], [1, 2]),
        ({}, [2, 2, 3, 4], [2, 4]),  # of a run that goes on from a checkpoint
        ({"save_every": 0}, [0, 1, 2, 3, 4], []),
        ({"deterministic": False}, [0, 1, 2, 3, 4], []),
    ],
)
async def test_environments_begin_anew_once_at_every_checkpoint_that_is_due(changes, versions, renewed):
    shard = Shard()
    renewal = renewal_of(shard.renew, **changes)
    for version in versions:
        await renewal.before(ticket(version=version))
    assert shard.told == [("renew", step) for step in renewed]


async def test_what_could_not_be_built_is_built_again_at_the_next_attempt():
    attempts = []

    async def renew(step):
        attempts.append(step)
        if len(attempts) == 1:
            raise OSError("no memory")

    renewal = renewal_of(renew)
    with pytest.raises(OSError, match="no memory"):
        await renewal.before(ticket(version=2))
    await renewal.before(ticket(version=2))
    await renewal.before(ticket(version=2))
    assert attempts == [2, 2]

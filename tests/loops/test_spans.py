"""The loops record what they wait for and work on."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.env import evaluate_shard, run_shard
from rlinf_async.loops.inference import refresh_weights
from rlinf_async.loops.learner import learn_batch
from rlinf_async.observe.spans import SpanLog, read_spans

TICKET = Ticket(shard=3, batch=7, epoch=1, place=5, version=6)
PIECE = Piece(ticket=TICKET, part=0, rank=0, size=2, oldest=5, newest=6, env_steps=1, payload=None)


class Env:
    size, horizon = 2, 2

    def __init__(self, *, breaks=False):
        self.breaks = breaks

    async def start(self):
        return "o"

    async def step(self, answer):
        if self.breaks:
            raise ZeroDivisionError
        return "o"

    def observation(self, output):
        return output

    async def finish(self):
        pass


class Broker:
    """The policy and the trajectories, as far as one rollout needs them."""

    def __init__(self):
        self.tickets = [TICKET, None]
        self.handed_over = []

    @asynccontextmanager
    async def rollout(self, shard):
        yield

    async def act(self, request):
        return "a"

    async def admit(self, shard):
        return self.tickets.pop(0)

    async def put(self, ticket, pieces):
        self.handed_over.append((ticket, pieces))


def collect(log, env):
    broker = Broker()
    loop = run_shard(
        shard=3,
        env=env,
        policy=broker,
        trajectories=broker,
        recorder=lambda ticket: SimpleNamespace(append=lambda *_: None, build=lambda *_: [PIECE]),
        spans=log,
    )
    asyncio.run(loop)
    return broker


def kinds(directory):
    return [span["kind"] for span in read_spans(directory)]


def test_a_rollout_leaves_what_its_shard_did_and_waited_for(tmp_path):
    broker = collect(SpanLog(tmp_path), Env())
    assert broker.handed_over == [(TICKET, [PIECE])]
    spans = read_spans(tmp_path)
    assert [span["kind"] for span in spans] == [
        *("gate", "reset", "ask", "step", "ask", "step", "ask", "put", "rollout", "gate")
    ]
    assert {span["shard"] for span in spans} == {3}
    asks, steps = ([one["number"] for one in spans if one["kind"] == kind] for kind in ("ask", "step"))
    assert asks[:2] == steps
    assert asks[0] < asks[1] < asks[2]
    assert not any("mode" in span for span in spans)
    put, rollout = spans[7:9]
    names = {"batch": 7, "epoch": 1, "place": 5}
    assert put.items() >= names.items()
    assert rollout.items() >= {**names, "version": 6, "oldest": 5, "newest": 6}.items()
    assert rollout["began"] <= min(span["began"] for span in spans if span["kind"] == "reset")


def test_what_an_evaluation_asks_for_is_told_from_what_is_trained(tmp_path):
    asked = []

    class Policy(Broker):
        async def act(self, request):
            asked.append(request.number)
            return await super().act(request)

    log = SpanLog(tmp_path)
    asyncio.run(evaluate_shard(shard=3, env=Env(), policy=Policy(), rollouts=2, spans=log))
    spans = read_spans(tmp_path)
    facts = [(span["kind"], span["shard"], span["number"], span["mode"]) for span in spans]
    assert facts == [("ask", 3, number, "eval") for number in asked]
    assert sorted(set(asked)) == asked
    assert len(asked) == 4


def test_a_simulator_that_fails_is_seen_in_its_span(tmp_path):
    with pytest.raises(ZeroDivisionError):
        collect(SpanLog(tmp_path), Env(breaks=True))
    assert read_spans(tmp_path)[-1]["error"] == "ZeroDivisionError"


def test_weights_leave_the_time_from_their_arrival_until_the_policy_acts_by_them(tmp_path):
    offers, applied = [(8, "data"), None], []

    async def following():
        return offers.pop(0)

    async def note(version):
        applied.append(version)

    async def load(version, data):
        assert data == "data"

    port = SimpleNamespace(next=following, applied=note)
    policy = SimpleNamespace(load=load)
    asyncio.run(refresh_weights(weights=port, policy=policy, spans=SpanLog(tmp_path)))
    assert applied == [8]
    (span,) = read_spans(tmp_path)
    assert (span["kind"], span["version"]) == ("load", 8)


def test_a_learner_names_the_trajectories_that_it_accepts(tmp_path):
    log, done = SpanLog(tmp_path), []
    learner = SimpleNamespace(
        begin=lambda batch: done.append(batch), accept=done.append, finish=lambda: {"loss": 1.0}
    )

    async def take(batch, *, whole):
        return [PIECE], True

    metrics = asyncio.run(
        learn_batch(
            batch=7,
            pieces=SimpleNamespace(take=take),
            learner=learner,
            streaming=True,
            spans=log,
        )
    )
    assert metrics["loss"] == 1.0
    assert done == [7, [PIECE]]
    spans = {span["kind"]: span for span in read_spans(tmp_path)}
    assert set(spans) == {"fetch", "accept", "finish"}
    assert {span["batch"] for span in spans.values()} == {7}
    # Of place 5, epoch 1, part 0: two trajectories, two versions old, one of which passed in flight.
    assert spans["accept"]["pieces"] == [[5, 1, 0, 2, 2, 1]]

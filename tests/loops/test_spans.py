"""The loops record what they wait for and work on."""

import asyncio
from types import SimpleNamespace

import pytest

from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.evaluation import evaluate_shard
from rlinf_async.loops.inference import refresh_weights
from rlinf_async.loops.learner import learn_batch
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.spans import SpanLog
from tests.loops.test_env import Story, collect
from tests.loops.virtual import run

TICKET = Ticket(shard=7, batch=7, epoch=1, place=5, version=6)
PIECE = Piece(ticket=TICKET, part=0, rank=0, size=2, oldest=5, newest=6, env_steps=1, payload=None)


class Collected(Story):
    """Hands over one piece, whatever was played."""

    handed_over = None

    async def complete(self, output):
        """Nothing comes late."""

    def build(self, output, answer):
        return [PIECE]

    async def put(self, given, pieces):
        self.handed_over = (given, pieces)


def test_a_rollout_leaves_what_its_shard_did_and_waited_for(tmp_path):
    story = Collected([TICKET])
    collect(story, spans=SpanLog(tmp_path))
    assert story.handed_over == (TICKET, [PIECE])
    spans = read_spans(tmp_path)
    assert [span["kind"] for span in spans] == [
        *("gate", "reset", "ask", "step", "ask", "step", "ask", "put", "rollout", "gate")
    ]
    assert {span["shard"] for span in spans} == {7}
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

    class Asked(Story):
        async def act(self, request):
            asked.append(request.number)
            return await super().act(request)

    story = Asked()
    run(evaluate_shard(shard=7, env=story, policy=story, rollouts=2, spans=SpanLog(tmp_path)))
    spans = read_spans(tmp_path)
    facts = [(span["kind"], span["shard"], span["number"], span["mode"]) for span in spans]
    assert facts == [("ask", 7, number, "eval") for number in asked]
    assert sorted(set(asked)) == asked
    assert len(asked) == 4


def test_a_simulator_that_fails_is_seen_in_its_span(tmp_path):
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        collect(Story([TICKET], breaks=1), spans=SpanLog(tmp_path))
    (failed,) = [span for span in read_spans(tmp_path) if "error" in span]
    assert (failed["kind"], failed["error"]) == ("step", "ShardFailure")


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

import gzip
import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.spans import SpanLog
from rlinf_async.trace.command import write_trace
from rlinf_async.trace.flows import flows_of
from rlinf_async.trace.lanes import lanes_of
from rlinf_async.trace.perfetto import trace_events


def span(kind, began, ended, process="env worker 0", **facts):
    return {"kind": kind, "began": began, "ended": ended, "process": process, **facts}


ROLLOUT = [
    span("gate", 0.0, 1.0, shard=3),
    span("reset", 1.0, 2.0, shard=3),
    span("ask", 2.0, 3.0, shard=3),
    span("forward", 2.2, 2.8, "inference rank 0", shards=[1, 3], size=2),
    span("step", 3.0, 4.0, shard=3),
    span("put", 4.0, 4.5, shard=3, batch=7, epoch=0, place=3),
    span("rollout", 1.0, 4.5, shard=3, batch=7, epoch=0),
    span("accept", 5.0, 7.0, "learner rank 0", batch=7, pieces=[[3, 0, 0, 2, 1, 1], [4, 0, 0, 2, 0, 0]]),
    span("optimizer step", 6.0, 7.0, "learner rank 0"),
    span("copy", 7.0, 7.2, "learner rank 0", version=8),
    span("send", 7.2, 7.5, "learner rank 0", version=8),
    span("load", 7.4, 7.7, "inference rank 0", version=8),
]


def test_arrows_lead_from_observation_to_action_from_trajectory_to_step_and_from_learner_to_policy():
    ways = {flow.name: [one["kind"] for one in flow.spans] for flow in flows_of(ROLLOUT)}
    assert ways == {
        "action": ["ask", "forward", "step"],
        "trajectory": ["put", "accept", "optimizer step"],
        "weights": ["copy", "send", "load"],
    }


def test_a_forward_pass_answers_the_request_that_was_open_and_no_other():
    asks = [span("ask", 0.0, 1.0, shard=0), span("ask", 2.0, 3.0, shard=0), span("ask", 4.0, 5.0, shard=0)]
    forward = span("forward", 2.3, 2.6, "inference rank 0", shards=[0])
    (flow,) = flows_of([*asks, forward])
    assert flow.spans == (asks[1], forward)


def test_what_lost_its_other_half_in_a_crash_has_no_arrow():
    orphans = [
        span("forward", 2.3, 2.6, "inference rank 0", shards=[0]),
        span("accept", 5.0, 7.0, "learner rank 0", batch=7, pieces=[[3, 0, 0, 2, 1, 1]]),
        span("load", 1.0, 2.0, "inference rank 0"),
    ]
    assert flows_of(orphans) == []


moments = st.floats(0, 10, allow_nan=False)
anything = st.builds(
    lambda began, length, kind: span(kind, began, began + length, **({"shard": 1} if kind == "ask" else {})),
    moments,
    moments,
    st.sampled_from(["ask", "queued", "send"]),
)


@given(st.lists(anything, max_size=30))
def test_spans_of_a_lane_nest_or_follow_each_other(spans):
    placed = lanes_of(spans)
    assert len(placed) == len(spans)
    for (a, lane), (b, other) in combinations(placed, 2):
        if lane == other:
            apart = a["ended"] <= b["began"] or b["ended"] <= a["began"]
            within = a["began"] <= b["began"] and b["ended"] <= a["ended"]
            assert apart or within or (b["began"] <= a["began"] and a["ended"] <= b["ended"])


def test_processes_stand_in_the_order_in_which_data_passes_them_and_shards_by_number():
    spans = [span("step", 0.0, 1.0, shard=number) for number in (10, 2)]
    spans += [
        span("learn", 0.0, 1.0, name) for name in ("learner rank 0", "env worker 10", "env worker 2", "x")
    ]
    names = [event["args"]["name"] for event in trace_events(spans) if event["name"].endswith("_name")]
    assert names == [
        *("env worker 0", "shard 2", "shard 10"),
        *("env worker 2", "steps", "env worker 10", "steps", "learner rank 0", "steps", "x", "steps"),
    ]


def test_every_arrow_touches_slices_and_goes_forward_in_time():
    events = trace_events(ROLLOUT)
    slices = [event for event in events if event["ph"] == "X"]
    for number in {event["id"] for event in events if "id" in event}:
        ends = [event for event in events if event.get("id") == number]
        assert [end["ph"] for end in ends] == ["s", "t", "f"]
        assert [end["ts"] for end in ends] == sorted(end["ts"] for end in ends)
        for end in ends:
            assert any(
                (one["pid"], one["tid"]) == (end["pid"], end["tid"])
                and one["ts"] <= end["ts"] <= one["ts"] + one["dur"]
                for one in slices
            )


def test_a_trace_names_no_path_of_the_machine():
    events = trace_events([span("step", 0.0, 1.0, shard=0, file="/home/somebody/model", error="OSError")])
    assert "somebody" not in json.dumps(events)
    assert "OSError" in json.dumps(events)


def recorded(tmp_path):
    SpanLog(tmp_path / "run" / "trace", process="driver").add("learn", 0.0, step=1)
    return tmp_path / "run"


def test_a_trace_is_json_and_compressed_when_its_name_says_so(tmp_path):
    run = recorded(tmp_path)
    assert write_trace(run, tmp_path / "a.json") == write_trace(run, tmp_path / "a.json.gz") == 1
    plain = (tmp_path / "a.json").read_bytes()
    assert json.loads(plain)["traceEvents"]
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == plain


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda run: None, "is no directory"),
        (lambda run: run.write_text("x"), "is no directory"),
        (lambda run: run.mkdir(), "no run directory of rlinf-async"),
        (lambda run: (run.mkdir(), (run / "config.yaml").write_text("")), "async.trace was false"),
        (lambda run: SpanLog(run / "trace", process="driver"), "no span that ended"),
    ],
)
def test_a_directory_without_a_trace_is_refused_with_a_reason(tmp_path, prepare, message):
    prepare(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        write_trace(tmp_path / "run", tmp_path / "out.json")


def test_a_place_that_cannot_be_written_is_said_to_be_so(tmp_path):
    with pytest.raises(ValueError, match="cannot write"):
        write_trace(recorded(tmp_path), tmp_path)

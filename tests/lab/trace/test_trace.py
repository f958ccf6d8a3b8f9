import gzip
import json
import os
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.lab.trace import counters_of, flows_of, lanes_of, name_of, trace_events, write_trace
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import SpanLog


def span(kind, began, ended, process="env worker 0", **facts):
    return {"kind": kind, "began": began, "ended": ended, "process": process, **facts}


ROLLOUT = [
    span("gate", 0.0, 1.0, shard=3),
    span("reset", 1.0, 2.0, shard=3),
    span("ask", 2.0, 3.0, shard=3, number=5),
    span("forward", 2.2, 2.8, "inference rank 0", shards=[1, 3], numbers=[5, 5], size=2),
    span("step", 3.0, 4.0, shard=3, number=5),
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
    asks = [span("ask", 2.0 * at, 2.0 * at + 1, shard=0, number=at) for at in range(3)]
    forward = span("forward", 2.3, 2.6, "inference rank 0", shards=[0], numbers=[1])
    (flow,) = flows_of([*asks, forward])
    assert flow.spans == (asks[1], forward)


def test_requests_of_one_number_and_another_shard_and_steps_of_another_request_are_not_confused():
    ask, other = span("ask", 0.0, 3.0, shard=0, number=4), span("ask", 0.0, 3.0, shard=1, number=4)
    forward = span("forward", 1.0, 2.0, "inference rank 0", shards=[1, 0], numbers=[4, 4])
    later = span("step", 5.0, 6.0, shard=1, number=9)
    ways = [flow.spans for flow in flows_of([ask, other, forward, later])]
    assert ways == [(other, forward), (ask, forward)]


def test_what_lost_its_other_half_in_a_crash_has_no_arrow():
    orphans = [
        span("forward", 2.3, 2.6, "inference rank 0", shards=[0], numbers=[0]),
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


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (span("forward", 0, 1, size=16), "forward 16"),
        (span("rollout", 0, 1, shard=1, batch=3), "rollout b3"),
        (span("accept", 0, 1, batch=3, pieces=[]), "accept b3"),
        (span("load", 0, 1, version=8), "load v8"),
        (span("load", 0, 1), "load"),
        (span("learn", 0, 1, step=4), "learn 4"),
        (span("step", 0, 1, shard=3, number=5), "step"),
        (span("optimizer step", 0, 1), "optimizer step"),
        (span("forward", 0, 1, size="/home/somebody"), "forward"),
    ],
)
def test_a_slice_is_called_by_what_it_is_about(made, name):
    assert name_of(made) == name
    (slice_,) = [event for event in trace_events([made]) if event["ph"] == "X"]
    assert slice_["name"] == name
    assert slice_["args"]["kind"] == made["kind"]


def values(spans, name):
    (found,) = [counter.moments for counter in counters_of(spans) if counter.name == name]
    return found


def test_counters_tell_what_is_under_way_and_what_queues():
    assert values(ROLLOUT, "rollouts in flight") == [(1.0, {"count": 1.0}), (4.5, {"count": 0.0})]
    assert values(ROLLOUT, "requests in queue") == [(2.0, {"count": 1.0}), (2.2, {"count": 0.0})]
    assert values(ROLLOUT, "trajectories in queue") == [(4.5, {"count": 2.0}), (5.0, {"count": 0.0})]


def test_counters_tell_the_staleness_of_what_is_trained_and_the_newest_versions():
    learned = [*ROLLOUT, span("finish", 7.0, 7.1, "learner rank 0", batch=7)]
    assert values(learned, "staleness") == [(5.0, {"mean": 0.5, "most": 1.0})]
    assert values(learned, "version") == [(7.1, {"trained": 8.0}), (7.7, {"trained": 8.0, "acting": 8.0})]


def test_counters_count_nothing_that_lost_its_other_half_and_none_is_shown_without_numbers():
    orphans = [
        span("ask", 2.0, 3.0, shard=3, number=5),
        span("put", 4.0, 4.5, shard=3, batch=7, epoch=0, place=3),
        span("finish", 5.0, 6.0, "learner rank 0"),
    ]
    assert counters_of(orphans) == []
    assert not any(event["ph"] == "C" for event in trace_events(orphans))


@given(st.lists(st.builds(lambda b, n: span("rollout", b, b + n, shard=0), moments, moments), max_size=20))
def test_what_is_under_way_is_never_negative_and_ends_with_nothing(spans):
    counts = [each["count"] for counter in counters_of(spans) for _, each in counter.moments]
    assert all(0 <= count <= len(spans) for count in counts)
    assert counts[-1:] in ([], [0.0])


def test_counters_stand_above_the_processes():
    events = trace_events(ROLLOUT)
    counting = {event["pid"] for event in events if event["ph"] == "C"}
    order = {
        event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"
    }
    assert [order[pid] for pid in counting] == [0]
    assert all(order[pid] > 0 for pid in order.keys() - counting)
    assert not any(event["pid"] in counting for event in events if event["ph"] == "X")


def recorded(tmp_path):
    SpanLog(tmp_path / "run" / "trace", process="driver").add("learn", 0.0, step=1)
    return tmp_path / "run"


def test_a_trace_is_json_and_compressed_when_its_name_says_so(tmp_path):
    run = recorded(tmp_path)
    assert write_trace(run, tmp_path / "a.json") == write_trace(run, tmp_path / "a.json.gz") == 1
    plain = (tmp_path / "a.json").read_bytes()
    assert json.loads(plain)["traceEvents"]
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == plain


def test_a_trace_says_of_which_run_and_which_processes_it_is(tmp_path):
    run = recorded(tmp_path)
    facts = {"levels": {"train": True}, "max_staleness": 1, "secret": "s3cret"}
    versions = {"rlinf-async": "0.1.0"}
    trace = RunDir(run).trace
    kept = {path: path.read_bytes() for path in trace.iterdir()}
    RunDir(run).begin(facts, title="of /home/somebody/x", versions=versions)
    trace.mkdir()
    for path, content in kept.items():
        path.write_bytes(content)
    write_trace(run, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    content = json.loads(text)
    assert content["otherData"]["versions"] == versions
    assert content["otherData"]["levels"] == {"train": True}
    assert content["otherData"]["cores"] >= 1
    assert "somebody" not in text
    assert "s3cret" not in text
    (label,) = [event["args"] for event in content["traceEvents"] if event["name"] == "process_labels"]
    assert label == {"labels": f"pid {os.getpid()}"}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda run: None, "is no directory"),
        (lambda run: run.write_text("x"), "is no directory"),
        (lambda run: run.mkdir(), "no run directory of rlinf-async"),
        (
            lambda run: (run.mkdir(), (run / "config.yaml").write_text("")),
            "ended before its workers were ready",
        ),
        (lambda run: SpanLog(run / "trace", process="driver"), "no readable span"),
        (
            lambda run: (run.mkdir(), (run / "trace").symlink_to(run.parent)),
            "its trace is a symbolic link",
        ),
    ],
)
def test_a_directory_without_a_trace_is_refused_with_a_reason(tmp_path, prepare, message):
    prepare(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        write_trace(tmp_path / "run", tmp_path / "out.json")


def test_a_place_that_cannot_be_written_is_said_to_be_so(tmp_path):
    with pytest.raises(ValueError, match="cannot be written"):
        write_trace(recorded(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_link_at_the_place_of_the_trace_is_not_written_through(tmp_path, name):
    run = recorded(tmp_path)
    (tmp_path / "precious").write_text("all my work")
    (run / name).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="it is a symbolic link"):
        write_trace(run, run / name)
    assert (tmp_path / "precious").read_text() == "all my work"

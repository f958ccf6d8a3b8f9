import pytest

from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.timelines import (
    ENV_PART,
    INFERENCE_PART,
    LEARNER_PART,
    extremes,
    mean_shares,
    measured,
    of_part,
    slowest,
    steps_of,
    timelines_of,
)
from tests.lab.report.making import TRACE, WINDOW, write_run


@pytest.fixture
def timelines(tmp_path):
    return timelines_of(RunFiles.read(write_run(tmp_path)).spans)


def test_every_training_shard_and_every_rank_has_a_timeline(timelines):
    assert [timeline.name for timeline in timelines] == [
        "shard 0",
        "shard 1",
        "inference rank 0",
        "learner rank 0",
    ]


def test_a_shard_is_divided_as_its_spans_say_within_the_window(timelines):
    assert timelines[0].shares(WINDOW) == pytest.approx(
        {
            "stepping": 8 / 20,
            "resetting": 1 / 20,
            "waiting for actions": 2 / 20,
            "at the gate": 4 / 20,
            "being built anew": 0,
            "handing over a rollout": 1 / 20,
            "rest": 4 / 20,
        }
    )


def test_loading_beside_a_forward_pass_is_counted_once(timelines):
    assert timelines[2].shares(WINDOW) == pytest.approx(
        {
            "in a forward pass": 5 / 20,
            "loading weights": 2 / 20,
            "waiting for requests": 5 / 20,
            "rest": 8 / 20,
        }
    )


def test_a_fetch_beside_training_is_no_wait(timelines):
    assert timelines[3].shares(WINDOW) == pytest.approx(
        {
            "training": 6 / 20,
            "copying weights": 1 / 20,
            "waiting for trajectories": 2 / 20,
            "waiting for the driver or an evaluation": 11 / 20,
        }
    )


@pytest.mark.parametrize("window", [WINDOW, (0.0, 40.0), (13.5, 13.75), (100.0, 101.0)])
def test_shares_sum_to_one(timelines, window):
    for timeline in timelines:
        assert sum(timeline.shares(window).values()) == pytest.approx(1.0)
        assert timeline.busy(window) <= 1.0


def test_of_many_lanes_the_busiest_the_median_and_the_idlest_are_found(tmp_path):
    steps = [("step", 10, 10 + shard, {"shard": shard}) for shard in range(20)]
    run = RunFiles.read(write_run(tmp_path, trace={**TRACE, "env worker 0": steps}))
    shards = of_part(timelines_of(run.spans), ENV_PART)
    assert [(word, timeline.number) for word, timeline in extremes(shards, WINDOW)] == [
        ("busiest", 19),
        ("median", 9),
        ("idlest", 0),
    ]
    assert mean_shares(shards, WINDOW)["stepping"] == pytest.approx(sum(range(20)) / 20 / 20)
    assert mean_shares([], WINDOW) == {}


def test_what_every_part_does_has_words_of_its_own_colour():
    from rlinf_async.lab.report import palette

    for part in (ENV_PART, INFERENCE_PART, LEARNER_PART):
        assert len({palette.OF_WORDS[word] for word in part.words}) == len(part.words)


def test_steps_end_with_the_evaluation_that_follows_them(tmp_path):
    steps = steps_of(RunFiles.read(write_run(tmp_path)).spans)
    assert [(step.number, step.began, step.ended) for step in steps] == [(1, 0, 10), (2, 10, 19), (3, 19, 30)]
    assert [step.number for step in slowest(steps, 1)] == [3]
    assert [step.number for step in slowest(steps, 5)] == [2, 3]


def test_the_measured_time_is_that_of_the_steps_after_the_first(tmp_path):
    assert measured(RunFiles.read(write_run(tmp_path)).spans) == WINDOW


def test_without_a_driver_it_is_the_time_of_all_spans(tmp_path):
    trace = {process: spans for process, spans in TRACE.items() if process != "driver"}
    assert measured(RunFiles.read(write_run(tmp_path, trace=trace)).spans) == (5, 30)
    assert measured([]) is None


def test_a_step_that_failed_has_not_ended(tmp_path):
    driver = [*TRACE["driver"], ("learn", 30, 35, {"step": 4, "error": "RuntimeError"})]
    run = RunFiles.read(write_run(tmp_path, trace={**TRACE, "driver": driver}))
    assert steps_of(run.spans)[-1].number == 3

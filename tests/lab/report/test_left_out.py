"""What a run has left out, and what it would have cost: by hand, and of a run of each kind of process."""

import pytest

from rlinf_async.lab.lengths import EpisodeLengths
from rlinf_async.lab.report.left_out import FRAMES_REMARK, section
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.run_view import subjects
from rlinf_async.lab.virtual.run import predict
from tests.lab.report.making import TRACE, metrics, write_run
from tests.lab.virtual.given import settings, times

NOTHING = {"frames": None, "env_steps": 0.0, "decisions": 0.0, "samples": None}


def lines(*shares):
    """The metrics of steps with these shares of each kind; None where a host does not tell one."""
    return [
        metrics(
            step,
            **{f"async__skipped__{name}": part for name, part in (NOTHING | own).items() if part is not None},
        )
        for step, own in enumerate(shares, 1)
    ]


def seconds(text):
    """Of a duration below a minute, as it is shown."""
    return float(text.removesuffix(" s"))


def shown(*runs):
    """The section of these run directories, as {what was left out: the other cells}, table by table."""
    found = section(subjects([RunFiles.read(run) for run in runs]))
    return found, [{row[0]: list(row[1:]) for row in table.rows} for table in found.tables]


def test_what_was_left_out_would_have_cost_as_much_as_the_same_work_that_was_done(tmp_path):
    shares = [
        {"frames": 0.8, "env_steps": 0.2, "decisions": 0.5, "samples": 0.75},
        {"frames": 0.9, "env_steps": 0.6, "decisions": 0.5, "samples": 0.75},
    ]
    found, (rows,) = shown(write_run(tmp_path, lines=lines(*shares)))
    # 320 environment steps in each of two steps of the run: 64 and 192 were left out, of 640.
    steps_s = 6 + 4 + 2
    assert seconds(rows["environment steps after an end"][1]) == pytest.approx(steps_s * 256 / 384, abs=0.05)
    assert rows["environment steps after an end"][::2] == ["40%", "12 s"]
    # Of the decisions as many as were made, in the one pass of 5 s.
    assert rows["decisions after an end"][:3] == ["50%", "5 s", "5 s"]
    # Three samples left out for each that was trained, in a micro-batch of 3 s.
    assert rows["samples without a gradient, in each epoch"][:3] == ["75%", "9 s", "3 s"]
    assert rows["frames that nobody looks at"] == ["85%", "-", "-", ""]
    assert found.remarks == [FRAMES_REMARK]


def test_frames_would_have_cost_as_much_as_those_whose_drawing_was_measured(tmp_path):
    drawn = {"async/frames/drawn_seconds": 1.5}
    found, (rows,) = shown(
        write_run(tmp_path, lines=[line | drawn for line in lines({"frames": 0.75}, {"frames": 0.75})])
    )
    assert rows["frames that nobody looks at"] == ["75%", "9 s", "3 s", "frames that were drawn"]
    assert found.remarks == []


def test_steps_of_a_run_count_by_their_environment_steps(tmp_path):
    few, many = lines({"env_steps": 0.0}, {"env_steps": 0.5})
    _, (rows,) = shown(write_run(tmp_path, lines=[few, many | {"async/env_steps": 3 * 320.0}]))
    assert rows["environment steps after an end"][0] == "38%"
    assert seconds(rows["environment steps after an end"][1]) == pytest.approx(12 * 3 / 5, abs=0.05)


def test_scores_of_inference_are_passes_over_samples_and_so_is_all_training_without_micro_batches(tmp_path):
    trace = TRACE | {
        "inference rank 0": [("score", 0, 2, {"size": 4}), ("forward", 2, 3, {"size": 4})],
        "learner rank 0": [
            ("accept", 5, 6, {"batch": 0}),
            ("finish", 6, 9, {"batch": 0}),
            ("optimizer step", 8, 9, {}),
        ],
    }
    _, (rows,) = shown(write_run(tmp_path, lines=lines({"samples": 0.5}), trace=trace))
    assert rows["samples without a gradient, in each epoch"][:3] == ["50%", "5 s", "5 s"]


@pytest.mark.parametrize(("share", "trace"), [(1.0, TRACE), (0.5, {})])
def test_nothing_is_estimated_from_work_that_was_not_done_or_not_recorded(tmp_path, share, trace):
    _, (rows,) = shown(write_run(tmp_path, lines=lines({"samples": share}), trace=trace))
    assert rows["samples without a gradient, in each epoch"][1] == "-"


def test_a_run_that_left_nothing_out_has_no_table_and_each_of_several_has_its_own(tmp_path):
    nothing = write_run(tmp_path, lines=lines({}), name="all")
    assert not shown(nothing)[0].shows
    lean = [write_run(tmp_path, lines=lines({"decisions": 0.5}), name=name) for name in ("a", "b")]
    found, tables = shown(nothing, *lean)
    assert [table.note for table in found.tables] == ["a", "b"]
    assert len(tables) == 2


def test_of_a_planned_run_the_estimate_is_what_the_run_without_skips_takes(tmp_path):
    """Every environment decides alone, so that a decision that is left out is a pass that is left out."""
    costs = {"reset": 0.0, "decision": 1.0, "forward": 0.25, "sample": 0.0625}
    sizes = {
        "horizon": 8,
        "total_envs": 2,
        "shards_per_worker": 2,
        "micro_batch_size": 8,
        "normalizes": False,
    }
    found, total = {}, {}
    for name, skip in (("without", False), ("lean", True)):
        run = settings({"mode": "off", "skip": skip}, episodes_end=True, **sizes)
        predict(run, times(lengths=EpisodeLengths(seen=(2,)), **costs), run_dir=tmp_path / name)
        found[name] = RunFiles.read(tmp_path / name)
    for name, run in found.items():
        total[name] = sum(span["ended"] - span["began"] for span in run.spans if span["kind"] == "step")
    _, (rows,) = shown(tmp_path / "lean")
    share, saved = rows["environment steps after an end"][:2]
    assert share == "75%"
    assert seconds(saved) == pytest.approx(total["without"] - total["lean"], rel=0.01)

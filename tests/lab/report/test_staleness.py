import json

import pytest

from rlinf_async.lab.report.measures import Staleness, refused
from rlinf_async.lab.report.run_files import RunFiles
from tests.lab.report.making import write_run


def accepting(*pieces):
    return {"kind": "accept", "began": 0.0, "ended": 1.0, "process": "learner rank 0", "pieces": list(pieces)}


def test_staleness_is_divided_into_flight_and_queue_and_weighted_by_trajectories(tmp_path):
    ages = Staleness.of(RunFiles.read(write_run(tmp_path)).spans)
    assert ages.total == 16
    assert ages.histogram() == [(0, 0.5, 0.0, 0.0), (1, 0.0, 0.25, 0.25)]
    assert (ages.mean_in_flight, ages.mean_in_queue) == (0.25, 0.25)


def test_a_bar_of_several_versions_is_divided_in_their_proportion():
    ages = Staleness.of([accepting([0, 0, 0, 3, 4, 1], [1, 0, 0, 1, 4, 4])])
    ((staleness, fresh, in_flight, in_queue),) = ages.histogram()
    assert (staleness, fresh) == (4, 0.0)
    assert in_flight == pytest.approx(3 / 4 * 1 / 4 + 1 / 4)
    assert in_queue == pytest.approx(3 / 4 * 3 / 4)


@pytest.mark.parametrize(
    "pieces", ["text", [1, 2], [[0, 0, 0, 1, 1]], [[0, 0, 0, 1, "1", 0]], [[0, 0, 0, 1, 1, 2]], None]
)
def test_what_is_no_piece_is_left_out(pieces):
    ages = Staleness.of([{"kind": "accept", "pieces": pieces}, {"kind": "finish"}])
    assert (ages.total, ages.histogram(), ages.mean_in_queue) == (0, [], 0.0)


def test_refusals_are_those_of_the_summary_or_else_of_the_last_status(tmp_path):
    books = {"trajectories": {"refused": {"stale": 2}}}
    assert refused(RunFiles.read(write_run(tmp_path, summary=books, name="ended"))) == {"stale": 2}
    going = write_run(tmp_path, summary={}, name="going")
    assert refused(RunFiles.read(going)) is None
    status = {"time": 7.0, "step": 1, "total": 3}
    status["processes"] = {"coordinator 0": {"refused": {"closed": 1}}}
    (going / "status.json").write_text(json.dumps(status))
    assert refused(RunFiles.read(going)) == {"closed": 1}

"""What processes hold, on the page of a run."""

from types import SimpleNamespace

import pytest

from rlinf_async.lab.report.resources import resources
from rlinf_async.observe.events import Status
from rlinf_async.observe.read_files import typed

HOLDS = {
    "driver": {
        "memory": {"value": 1.5e9, "limit": 8e9, "per_minute": 6e7},
        "descriptors": {"value": 34, "per_minute": 0.2},
        "threads": {"value": 12, "per_minute": -3},
    },
    "the run": {"disk": {"value": 2e6, "limit": 1e9}},
}
SENTENCE = "driver: its use of memory grows by 10 MB a minute"


def section(facts):
    status = typed(Status, {"time": 1.0, "step": 1, "total": 2, **facts}) if facts is not None else None
    return resources([SimpleNamespace(run=SimpleNamespace(status=status), label="a")])


def test_each_process_has_a_row_and_what_is_foretold_is_said():
    found = section({"holds": HOLDS, "foretold": {"driver, memory": SENTENCE}})
    assert found.tables[0].header == ["", "memory", "descriptors", "threads", "disk"]
    assert found.tables[0].rows == [
        ["driver", "1.5 GB, +60 MB a minute", "34, steady", "12, -3 a minute", "-"],
        ["the run", "-", "-", "-", "2 MB"],
    ]
    assert found.remarks == [SENTENCE]


@pytest.mark.parametrize(
    "status", [None, {}, {"holds": 3}, {"holds": {"driver": 7}}, {"holds": {"driver": {}}}]
)
def test_a_status_without_it_shows_no_section(status):
    assert not section(status).shows

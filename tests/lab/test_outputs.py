"""A command writes where the user says, and over its own output only."""

import gzip

import pytest

from rlinf_async.lab.bench.command import open_results
from rlinf_async.lab.outputs import check_replaceable
from rlinf_async.lab.plan.command import plan_run, write
from rlinf_async.lab.report.page import write_report
from rlinf_async.lab.trace import write_trace
from tests.lab.plan.given import left_by

MARK = b"made by us"


@pytest.mark.parametrize(
    "content", [b"", b"made by us: 1", b"<p>made by us</p>", gzip.compress(b"made by us: 1")], ids=range(4)
)
def test_an_empty_file_and_an_own_output_are_replaced(tmp_path, content):
    (tmp_path / "out").write_bytes(content)
    check_replaceable(tmp_path / "out", MARK)
    check_replaceable(tmp_path / "absent", MARK)


@pytest.mark.parametrize(
    "content", [b"my thesis", gzip.compress(b"my thesis"), b"\x1f\x8bno archive"], ids=range(3)
)
def test_other_content_is_never_replaced(tmp_path, content):
    (tmp_path / "out").write_bytes(content)
    with pytest.raises(ValueError, match="holds something else, which would be lost"):
        check_replaceable(tmp_path / "out", MARK)
    assert (tmp_path / "out").read_bytes() == content


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("my thesis")
    return path


def test_no_command_replaces_a_file_of_the_users(tmp_path, theirs):
    run = left_by(tmp_path / "run")
    commands = (
        lambda: write_report([run], theirs),
        lambda: write_trace(run, theirs),
        lambda: write(plan_run(run), tmp_path, say=print),
        lambda: open_results([], json_path=theirs),
        lambda: write_report([run], run / "config.yaml"),
    )
    config = (run / "config.yaml").read_text()
    for command in commands:
        with pytest.raises(ValueError, match="would be lost"):
            command()
    assert theirs.read_text() == "my thesis"
    assert (run / "config.yaml").read_text() == config


def test_every_command_replaces_what_it_has_written_itself(tmp_path):
    run = left_by(tmp_path / "run")
    plan = plan_run(run)
    for _ in range(2):
        write_report([run], tmp_path / "page.html")
        write_trace(run, tmp_path / "trace.json")
        write_trace(run, tmp_path / "trace.json.gz")
        write(plan, tmp_path / "plan", say=print)

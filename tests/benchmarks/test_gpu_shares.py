"""The check of shares on a GPU, rehearsed on what stands in for one."""

import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.gpu import shares


def run(*arguments):
    app = Typer(pretty_exceptions_enable=False)
    app.command()(shares.main)
    return CliRunner().invoke(app, arguments)


def test_a_process_is_stopped_by_its_share_within_an_allocation_of_it():
    seen = shares.until_it_fails("cpu")
    assert seen["stopped_by"] == "share"
    assert seen["share"] - seen["piece"] < seen["held"] <= seen["share"]


def test_the_rehearsal_writes_its_rows_and_ends_in_order(tmp_path):
    file = tmp_path / "shares.json"
    result = run("--device", "cpu", "--json", str(file))
    assert result.exit_code == 0, result.output
    rows = json.loads(file.read_text())["rows"]
    assert rows.keys() == {"share"}
    assert f"| `share` | {rows['share']['share'] / 1e9:.3g} |" in result.output


@pytest.mark.parametrize("stopped_by", ["share", "full"])
def test_a_case_that_something_else_has_stopped_fails_the_command(stopped_by, monkeypatch):
    row = {"share": 1, "held": 1, "stopped_by": stopped_by, "others": 0, "beside": 0}
    monkeypatch.setattr(shares, "measured", lambda device: {"full": row})
    assert run("--device", "cpu").exit_code == (0 if stopped_by == "full" else 1)

"""The README's way from a clone to a comparison; `python -m benchmarks.newcomer` really goes it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.newcomer.__main__ import follow
from benchmarks.newcomer.readme import commands_of
from rlinf_async import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def commands() -> list[str]:
    return commands_of((ROOT / "README.md").read_text())


def test_the_readme_goes_from_setup_to_a_report_of_off_and_full(commands):
    assert commands[0] == "make setup"
    assert [line.split()[1] for line in commands if line.startswith("rlinf-async")] == [
        "train",
        "train",
        "report",
    ]
    modes = []
    for line in commands:
        name, *words = shlex.split(line)
        if name == "rlinf-async" and words[0] == "train":
            result = CliRunner().invoke(cli.app, ["explain", *words[1:], "--json"])
            assert result.exit_code == 0, result.output
            modes.append(json.loads(result.stdout)["mode"])
            (place,) = [
                word.partition("=")[2] for word in words if word.startswith("runner.logger.log_path=")
            ]
            assert f" {place}" in commands[-1]
    assert modes == ["off", "full"]


def test_commands_follow_each_other_in_one_shell(tmp_path):
    took = follow(["export WHERE=here", "echo $WHERE > place", "grep -q here place"], tmp_path)
    assert [one["command"] for one in took][1] == "echo $WHERE > place"
    with pytest.raises(RuntimeError, match="false: status 1"):
        follow(["false"], tmp_path)


def test_a_readme_without_the_commands_is_refused():
    with pytest.raises(ValueError, match="has no commands"):
        commands_of("# another\n\n```bash\nmake\n```\n")

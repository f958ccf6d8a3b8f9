"""The README's way from a clone to a comparison; `python -m benchmarks.newcomer` really goes it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.newcomer.readme import COMPARE_HEADING, TRY_HEADING, commands_of
from benchmarks.newcomer.room import SYSTEM_PATH, Room, gigabytes, python_of, sources
from rlinf_async import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def commands() -> list[str]:
    return commands_of((ROOT / "README.md").read_text(), COMPARE_HEADING)


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


def test_the_readme_names_two_commands_the_demo_and_what_ci_runs():
    demo, tests = commands_of((ROOT / "README.md").read_text(), TRY_HEADING)
    assert demo == "make demo"
    assert f"- run: sudo --preserve-env=PATH {tests}\n" in (ROOT / ".github/workflows/ci.yml").read_text()


@pytest.fixture
def room(tmp_path) -> Room:
    return Room(tmp_path, tmp_path, {"HOME": str(tmp_path), "PATH": SYSTEM_PATH})


def test_commands_follow_each_other_in_one_shell(room):
    took = room.follow(["export WHERE=here", "echo $WHERE > place", "grep -q here place"])
    assert [one["command"] for one in took][1] == "echo $WHERE > place"
    with pytest.raises(RuntimeError, match="false: status 1"):
        room.follow(["false"])


def test_a_command_finds_nothing_of_this_process_in_its_environment(room, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    room.follow(["env > variables"])
    names = {line.partition("=")[0] for line in (room.clone / "variables").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"HOME", "PATH"}


def test_only_the_sources_of_packages_are_kept_of_an_environment(tmp_path):
    kept = {"PIP_INDEX_URL": "mirror", "https_proxy": "proxy", "TORCH_INDEX_URL": "cpu"}
    others = {
        "PYTHONPATH": "x",
        "PIP_TARGET": "x",
        "PIP_COMPILE": "0",
        "VIRTUAL_ENV": "x",
        "RAY_ADDRESS": "x",
    }
    assert sources({**kept, **others, "HOME": str(tmp_path)}) == kept
    config = tmp_path / ".config/pip/pip.conf"
    config.parent.mkdir(parents=True)
    config.touch()
    assert sources({"HOME": str(tmp_path)}) == {"PIP_CONFIG_FILE": str(config)}


def test_the_system_has_the_first_word_on_python(tmp_path):
    assert Path(python_of(str(tmp_path))["PYTHON"]).exists()
    (tmp_path / "python3.12").symlink_to(sys.executable)
    assert python_of(str(tmp_path)) == {}


def test_gigabytes_count_what_is_linked_twice_once(tmp_path):
    (tmp_path / "first").write_bytes(bytes(200_000_000))
    (tmp_path / "second").hardlink_to(tmp_path / "first")
    assert gigabytes(tmp_path) == 0.2


def test_a_readme_without_the_commands_is_refused():
    with pytest.raises(ValueError, match="has no commands"):
        commands_of("# another\n\n```bash\nmake\n```\n", TRY_HEADING)

"""The outputs of a command: full, closed, or left by their reader; and a working directory that is gone."""

import json
import os
import re
import subprocess
import sys
from functools import cache

import pytest

from tests import fresh

COMMAND = (sys.executable, "-m", "rlinf_async.cli")
STEPS = 3
TRAIN = ("train", "local/point_reach", f"settings.batches={STEPS}", "run_dir=run")


@pytest.mark.parametrize(
    "command", [("--help",), ("configs",), ("configs", "--json"), ("status", "--help")], ids=" ".join
)
def test_a_full_disk_under_the_output_is_one_sentence(command, tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *command], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr == "error: what this command prints or writes has no room: No space left on device\n"


def test_a_command_without_an_output_ends_as_with_one(tmp_path):
    closed = " ".join([*COMMAND, "configs", ">&-"])
    done = subprocess.run(["sh", "-c", closed], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_goes_on_to_its_end_when_its_reader_has_left(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, *TRAIN], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline()
    process.stdout.close()  # as `head -1` does
    said = process.stderr.read()
    assert process.wait(timeout=300) == 0, said
    assert said == ""
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["ended"], summary["steps"]) == ("finished", STEPS)


CLOSING = """
import sys
from rlinf_async.lab.demo.simulators.point_reach_env import PointReachEnv

def build(*arguments):
    sys.stdout.close()
    return PointReachEnv(*arguments)
"""


def test_a_run_that_environments_close_the_output_of_ends_well(tmp_path):
    information = tmp_path / "closing-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: closing\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[rlinf_async.envs]\nclosing = closing:build\n")
    (tmp_path / "closing.py").write_text(CLOSING)
    done = subprocess.run(
        [*COMMAND, *TRAIN, "env.env_class=closing"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended"] == "finished"


@pytest.mark.parametrize(
    "command", [("explain", "local/point_reach"), TRAIN, ("compat", ".")], ids=lambda words: words[0]
)
def test_a_working_directory_that_was_deleted_is_one_sentence(command, tmp_path):
    script = "mkdir gone && cd gone && rmdir ../gone && exec " + " ".join([*COMMAND, *command])
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "error: the working directory does not exist any more; cd to one that does\n"


IMPORTS = "import typer, rich.console, rich.table, omegaconf, hydra"
"""What the commands import that is not ours."""
FORK = """
import sys
sys.argv = ["rlinf-async", *{}]
from rlinf_async.cli import app
app()
"""


@cache
def words_of(command, columns):
    """All words that a command prints in a terminal of so many columns."""
    done = fresh.run(FORK.format([*command]), ground=IMPORTS, env={"COLUMNS": columns})
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(re.findall(r"\w+", done.stdout))


@pytest.mark.parametrize("columns", ["0", "1", "20"])
@pytest.mark.parametrize(
    "command", [("configs",), ("--help",), ("explain", "local/point_reach")], ids=lambda words: words[0]
)
def test_a_narrow_terminal_cuts_no_word(command, columns):
    assert words_of(command, columns) == words_of(command, "200") != []

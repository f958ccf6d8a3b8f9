"""A command that is asked to end before it has begun says so, whatever it is importing at that moment."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SENDING = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, has it ignored

class Sending:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

sys.meta_path.insert(0, Sending())
command = sys.argv[3:]
%s
from rlinf_async.cli import app
sys.argv = ["rlinf-async", *command]
app()
"""
TRAIN = ("train", "local/point_reach")


def sent(number: int, module: str, place: Path, *command: str, before: str = ""):
    """The end of a command that is sent a signal when it imports `module`."""
    code = (SENDING % before).replace("sys.argv[1]", repr(module)).replace("sys.argv[2]", str(int(number)))
    return subprocess.run(
        [sys.executable, "-c", code, "", "", *command],
        capture_output=True,
        text=True,
        cwd=place,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("number", "module"),
    [
        (signal.SIGINT, "typer"),
        (signal.SIGTERM, "typer"),
        (signal.SIGHUP, "rlinf_async.compose"),
        (signal.SIGUSR1, "torch"),
        (signal.SIGINT, "torch"),
        (signal.SIGTERM, "rlinf_async.hosts.local.config"),
    ],
)
def test_a_signal_before_a_run_has_begun_is_answered_in_one_sentence(number, module, tmp_path):
    done = sent(number, module, tmp_path, *TRAIN)
    asked = "interrupted" if number == signal.SIGINT else f"asked to end by {number.name}"
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr == f"the command was {asked} before it had begun; to go on, start it again\n"
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_is_ignored_from_the_beginning_stays_ignored(tmp_path):
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    done = sent(signal.SIGHUP, "typer", tmp_path, "configs", before=ignored)
    assert done.returncode == 0, done.stderr
    assert "local/point_reach" in done.stdout


def test_handlers_are_as_they_were_once_a_command_has_begun(tmp_path):
    """Commands that start processes have their own."""
    look = "import atexit, signal; atexit.register(lambda: print(signal.getsignal(signal.SIGTERM)))"
    done = sent(0, "", tmp_path, "configs", before=look)
    assert done.stdout.splitlines()[-1] == str(signal.SIG_DFL)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("rlinf_async.compose", ("explain", "local/point_reach")),
        ("omegaconf", ("explain", "local/point_reach")),
        ("rlinf_async.hosts.rlinf.checkout", ("compat", ".")),
        ("rlinf_async.compose", ("configs",)),
    ],
)
def test_a_command_that_only_reads_ends_at_once_whatever_it_imports(module, command, tmp_path):
    done = sent(signal.SIGINT, module, tmp_path, *command)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "the command was interrupted before it had ended; to go on, start it again\n"
    assert done.stdout == ""


def test_a_sweep_that_is_interrupted_while_it_is_planned_writes_nothing(tmp_path):
    done = sent(signal.SIGINT, "rlinf_async.hosts.local.config", tmp_path, "sweep", "local/point_reach")
    assert done.returncode == 130, done.stderr
    assert done.stderr == "the command was interrupted before it had begun; to go on, start it again\n"
    assert list(tmp_path.iterdir()) == []

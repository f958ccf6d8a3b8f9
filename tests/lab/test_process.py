"""A run never outlives its starter: what interrupts the one ends the other, and all that it has started."""

import os
import signal
import subprocess
import sys

import pytest

from rlinf_async.lab.process import OVERDUE_STATUS, run_command

SWEEPER = """
import sys
from pathlib import Path
from rlinf_async.lab import process

script, directory, patience = sys.argv[1:]
process.ORDERLY_TIMEOUT_S = process.TERMINATE_S = float(patience)
process.run_command([sys.executable, "-c", script, directory + "/pipe"], Path(directory, "log"))
"""
RUN = """
import os, signal, subprocess, sys

pipe = os.open(sys.argv[1], os.O_WRONLY)
{before}
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], pass_fds=[pipe])
os.write(pipe, b"runs")
while True:
    signal.pause()
"""
"""Says that it runs, and has a child. Both hold the pipe, which ends when the last of them has ended."""
STUBBORN = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def _heed_signals() -> None:
    # A shell in the background lets its jobs ignore interrupts, nohup hang-ups; their children inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("before", "patience"), [("", "60"), (STUBBORN, "0")])
def test_what_ends_the_sweep_ends_its_run_and_all_that_it_has_started(tmp_path, number, before, patience):
    os.mkfifo(tmp_path / "pipe")
    script = RUN.format(before=before)
    command = [sys.executable, "-c", SWEEPER, script, str(tmp_path), patience]
    sweeper = subprocess.Popen(command, preexec_fn=_heed_signals)
    with (tmp_path / "pipe").open("rb") as pipe:
        assert pipe.read(4) == b"runs"
        sweeper.send_signal(number)
        assert pipe.read() == b""  # everybody has ended
    assert sweeper.wait() == (-signal.SIGINT if number == signal.SIGINT else 128 + number)


def test_a_command_that_is_overdue_ends_with_all_that_it_has_started(tmp_path, monkeypatch):
    pipes = []

    class Overdue(subprocess.Popen):
        def wait(self, timeout=None):
            if timeout != 3600.0:
                return super().wait(timeout)
            pipes.append((tmp_path / "pipe").open("rb"))
            assert pipes[0].read(4) == b"runs"
            raise subprocess.TimeoutExpired(self.args, timeout)

    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(subprocess, "Popen", Overdue)
    command = [sys.executable, "-c", RUN.format(before=""), str(tmp_path / "pipe")]
    assert run_command(command, tmp_path / "log", deadline_s=3600.0) == OVERDUE_STATUS
    with pipes[0] as pipe:
        assert pipe.read() == b""  # everybody has ended


def test_a_command_runs_where_and_with_what_it_is_told(tmp_path):
    script = "import os; print(os.getcwd(), os.environ['TOLD'], 'PATH' in os.environ)"
    command = [sys.executable, "-c", script]
    assert run_command(command, tmp_path / "log", directory=tmp_path, environment={"TOLD": "so"}) == 0
    assert (tmp_path / "log").read_text().split() == [str(tmp_path), "so", "True"]


def test_a_command_that_ends_by_itself_returns_its_status_and_leaves_its_output(tmp_path):
    script = "import sys; print('said'); print('failed', file=sys.stderr); sys.exit(7)"
    assert run_command([sys.executable, "-c", script], tmp_path / "log") == 7
    assert sorted((tmp_path / "log").read_text().split()) == ["failed", "said"]


def test_signals_are_handled_as_before_afterwards(tmp_path):
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    run_command([sys.executable, "-c", ""], tmp_path / "log")
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)] == before

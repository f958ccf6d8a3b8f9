"""A process that threads of another package would hold after the end of its command."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, concurrent.futures, threading, time
import typer
from rlinf_async.cli import last_threads

last_threads.GRACE_S = {grace}
atexit.register(print, "exit functions", flush=True)
{start}


@(command := typer.Typer(add_completion=False)).command()
def train():
    with last_threads.ending_without_threads(lambda text: print(text, flush=True)):
        {body}


command()
"""
THREAD = "threading.Thread(target={}, args=({},), name='of a simulator').start()"
FOREVER = THREAD.format("time.sleep", 3600)
UNTIL_THE_END = THREAD.format("threading.Thread.join", "threading.main_thread()")
OF_AN_EXECUTOR = "concurrent.futures.ThreadPoolExecutor(1, 'of a simulator').submit({}, {})"
EXECUTOR_FOREVER = OF_AN_EXECUTOR.format("time.sleep", 3600)
IDLE_EXECUTOR = OF_AN_EXECUTOR.format("time.sleep", 0)


def ended(start, *, grace, body="pass"):
    script = SCRIPT.format(grace=grace, start=start, body=body)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("start", "status", "name"),
    [
        (FOREVER, 0, "of a simulator"),
        (FOREVER, 3, "of a simulator"),
        (EXECUTOR_FOREVER, 0, "of a simulator_0"),
    ],
    ids=["thread", "failed-command", "executor"],
)
def test_threads_that_do_not_end_are_named_and_the_command_ends_with_its_own_status(start, status, name):
    body = f"raise typer.Exit({status})" if status else "pass"
    ended_with, (said, last) = ended(start, grace=0.1, body=body)
    assert ended_with == status
    assert f"still at work ({name}); the command ends without them" in said
    assert last == "exit functions"


@pytest.mark.parametrize("start", [UNTIL_THE_END, IDLE_EXECUTOR], ids=["thread", "executor"])
def test_threads_that_end_are_waited_for(start):
    assert ended(start, grace=3600) == (0, ["exit functions"])

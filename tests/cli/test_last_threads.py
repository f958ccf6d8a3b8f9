"""A process that threads of another package would hold after the end of its command."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, threading, time
import typer
from rlinf_async.cli import last_threads

last_threads.GRACE_S = {grace}
atexit.register(print, "exit functions", flush=True)
threading.Thread(target={target}, args=({argument},), name="of a simulator").start()


@(command := typer.Typer(add_completion=False)).command()
def train():
    with last_threads.ending_without_threads(lambda text: print(text, flush=True)):
        {body}


command()
"""
FOREVER = ("time.sleep", "3600")
UNTIL_THE_END = ("threading.Thread.join", "threading.main_thread()")


def ended(thread, *, grace, body="pass"):
    target, argument = thread
    script = SCRIPT.format(grace=grace, target=target, argument=argument, body=body)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("status", [0, 3])
def test_threads_that_do_not_end_are_named_and_the_command_ends_with_its_own_status(status):
    body = f"raise typer.Exit({status})" if status else "pass"
    ended_with, (said, last) = ended(FOREVER, grace=0.1, body=body)
    assert ended_with == status
    assert "still at work (of a simulator); the command ends without them" in said
    assert last == "exit functions"


def test_threads_that_end_are_waited_for():
    assert ended(UNTIL_THE_END, grace=3600) == (0, ["exit functions"])

"""Stacks of a live process: whoever looks at a run sees where it stands, and does not end it."""

import os
import signal
import subprocess
import sys

import pytest

from rlinf_async.observe.reading import stacks as reading
from rlinf_async.observe.reading.stacks import stacks_of

WAITING = """
import sys, threading
from pathlib import Path
from rlinf_async.observe.stacks import answer_for_stacks

def waiting_for_godot():
    print("ready", flush=True)
    threading.Event().wait()

answer_for_stacks(Path(sys.argv[1]), "env worker 0")
waiting_for_godot()
"""

# Frames come and go in several threads: what a reader without the interpreter's lock stumbled over.
BUSY = """
import sys, threading
from pathlib import Path
from rlinf_async.observe.stacks import answer_for_stacks

def deep(n):
    return deep(n - 1) if n else 0

def busy():
    while True:
        deep(50)

def spawning():
    while True:
        thread = threading.Thread(target=deep, args=(100,))
        thread.start()
        thread.join()

answer_for_stacks(Path(sys.argv[1]), "learner rank 0")
for target in (busy, busy, spawning):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
input()
"""


@pytest.fixture
def process(tmp_path):
    started = []

    def start(code):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code, tmp_path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_a_process_of_the_run_shows_its_stacks_and_goes_on(tmp_path, process):
    child = process(WAITING)
    for _ in range(2):
        ((name, stack),) = stacks_of(tmp_path)
        assert name == "env worker 0"
        assert stack.startswith("Thread MainThread:")
        assert stack.count("in waiting_for_godot") == 1
    assert child.poll() is None


def test_a_busy_process_survives_being_asked_again_and_again(tmp_path, process):
    child = process(BUSY)
    (asked,) = (tmp_path / "stacks").glob("*.ask")
    pipe = os.open(asked, os.O_WRONLY)
    os.write(pipe, b"?" * 2000)
    os.close(pipe)
    answers = asked.with_suffix(".txt")
    while not answers.exists() or answers.read_text().count("MainThread") < 200:
        assert child.poll() is None, child.returncode
    assert "in busy" in answers.read_text()


def test_a_process_that_has_ended_is_left_out(tmp_path, process):
    child = process(WAITING)
    child.kill()
    child.wait()
    assert list(stacks_of(tmp_path)) == []
    assert list((tmp_path / "stacks").iterdir()) != []


def test_a_stopped_process_is_said_not_to_answer(tmp_path, process, monkeypatch):
    monkeypatch.setattr(reading, "ANSWER_TIMEOUT_S", 0.2)
    child = process(WAITING)
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)  # its threads stop one by one, and the last could still answer
    ((name, stack),) = stacks_of(tmp_path)
    assert (name, stack.partition(":")[0]) == ("env worker 0", "it does not answer")


def test_only_the_owner_of_the_run_may_ask(tmp_path, process):
    process(WAITING)
    (asked,) = (tmp_path / "stacks").glob("*.ask")
    assert asked.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["a link at the pipe", "a link at the folder", "a file"])
def test_asking_writes_into_nothing_but_pipes(tmp_path, how):
    precious, run = tmp_path / "precious", tmp_path / "run"
    precious.write_text("all my work")
    run.mkdir()
    if how == "a link at the folder":
        (tmp_path / "folder").mkdir()
        os.link(precious, tmp_path / "folder" / "x-1.ask")
        (run / "stacks").symlink_to(tmp_path / "folder")
    else:
        (run / "stacks").mkdir()
        (os.symlink if "link" in how else os.link)(precious, run / "stacks" / "x-1.ask")
    assert list(stacks_of(run)) == []
    assert precious.read_text() == "all my work"


def test_an_answer_that_is_a_link_or_no_file_is_not_read(process, tmp_path):
    process(WAITING)
    (pipe,) = (tmp_path / "stacks").glob("*.ask")
    secret = tmp_path / "secret"
    secret.write_text("my key")
    pipe.with_suffix(".txt").symlink_to(secret)
    ((_, stack),) = stacks_of(tmp_path)
    assert "my key" not in stack
    assert secret.read_text() == "my key"

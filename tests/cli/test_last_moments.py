"""A process that threads or exit functions of another package would hold after the end of its command."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, concurrent.futures, threading, time
import typer
from rlinf_async.cli import last_moments

last_moments.TICK_S = {tick}
with last_moments.ending_in_time(lambda text: print(text, flush=True)):
    atexit.register(print, "exit functions", flush=True)
    {start}
    {body}
"""
THREAD = "threading.Thread(target={}, args=({},), name='of a simulator').start()"
FOREVER = THREAD.format("time.sleep", 3600)
UNTIL_THE_END = THREAD.format("threading.Thread.join", "threading.main_thread()")
OF_AN_EXECUTOR = "concurrent.futures.ThreadPoolExecutor(1, 'of a simulator').submit({}, {})"
EXECUTOR_FOREVER = OF_AN_EXECUTOR.format("time.sleep", 3600)
IDLE_EXECUTOR = OF_AN_EXECUTOR.format("time.sleep", 0)
NEVER = """
    def never():
        while True:
            {}
    atexit.register(never)
"""
ASLEEP = NEVER.format("threading.Event().wait()")
STUBBORN = """
    def never():
        while True:
            try:
                threading.Event().wait()
            except BaseException:
                pass
    atexit.register(never)
"""


def ended(start, *, tick, body="pass"):
    script = SCRIPT.format(tick=tick, start=start, body=body)
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
    ended_with, (said, last) = ended(start, tick=0.5, body=f"raise SystemExit({status})")
    assert ended_with == status
    assert f"still at work ({name}); the command ends without them" in said
    assert last == "exit functions"


@pytest.mark.parametrize("start", [UNTIL_THE_END, IDLE_EXECUTOR], ids=["thread", "executor"])
def test_threads_that_end_are_waited_for(start):
    assert ended(start, tick=3600) == (0, ["exit functions"])


@pytest.mark.parametrize("status", [0, 3])
def test_an_exit_function_that_does_not_return_is_named_and_left_and_the_others_run(status):
    ended_with, (said, left, last) = ended(ASLEEP, tick=0.1, body=f"raise SystemExit({status})")
    assert ended_with == status
    assert "the command is over, and an exit function (atexit) of another package holds its process: " in said
    assert said.endswith("never, line 12 of <string>; it is left after 1.2 s in one place")
    assert "never, line 12 of <string>; the command ends without it" in left
    assert last == "exit functions"


def test_one_that_cannot_be_interrupted_ends_with_the_process():
    ended_with, said = ended(STUBBORN, tick=0.1, body="raise SystemExit(3)")
    assert ended_with == 3
    assert len(said) == 2
    assert "exit functions" not in said


def test_one_that_holds_the_process_beside_a_thread_is_named_as_well():
    ended_with, (thread, said, left, last) = ended(ASLEEP + f"    {FOREVER}", tick=0.1)
    assert ended_with == 0
    assert "of a simulator" in thread
    assert "never" in said
    assert "never" in left
    assert last == "exit functions"


def test_an_exit_function_that_returns_late_is_waited_for_and_an_error_in_one_is_one_line():
    start = """atexit.register(lambda: 1 / 0)
    atexit.register(lambda: threading.Event().wait(1.0))"""
    status, (said, error, last) = ended(start, tick=0.3)
    assert status == 0
    assert "<lambda>, line 10 of <string>; it is left after 3.6 s in one place" in said
    assert error == "ignored at the end of the command: ZeroDivisionError: division by zero"
    assert last == "exit functions"


def test_an_exit_function_that_goes_on_is_named_and_waited_for():
    start = """ticks = iter(range(30))
    def goes_on():
        for _ in ticks:
            (lambda: threading.Event().wait(0.1))()
    atexit.register(goes_on)"""
    status, (said, last) = ended(start, tick=0.1)
    assert status == 0
    assert "goes_on, line" in said
    assert last == "exit functions"


def test_an_alarm_of_a_package_cuts_no_exit_function():
    start = """import signal
    def shuts_down():
        threading.Event().wait(0.5)
        print("has shut down", flush=True)
    atexit.register(shuts_down)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.1)"""
    assert ended(start, tick=3600) == (0, ["has shut down", "exit functions"])


def test_a_signal_during_an_exit_function_ends_that_one_in_a_line():
    start = "atexit.register(lambda: __import__('signal').raise_signal(2))"
    lines = ["ignored at the end of the command: KeyboardInterrupt", "exit functions"]
    assert ended(start, tick=3600) == (0, lines)

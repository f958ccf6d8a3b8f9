"""In a process of its own each, as signals are the whole process's."""

import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import os, signal, sys, time
import rlinf_async.termination as termination
from rlinf_async.termination import Terminated, Termination

number = signal.Signals[sys.argv[1]]
signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
asked = Termination()
asked.install()
"""


def run(body: str, number: str = "SIGTERM") -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(BEGIN) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", program, number], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGUSR1", 138)])
def test_at_once_the_process_ends_with_the_status_of_the_signal(number, status):
    ended = run("os.kill(os.getpid(), number); print('still here')", number)
    assert (ended.returncode, ended.stdout) == (status, "")


def test_patience_lasts_until_the_next_good_moment():
    ended = run("""
        with asked.patient():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # a scheduler asks every process, and some pass it on
            assert asked.asked
            assert 0 < asked.check() <= termination.END_TIMEOUT_S
            print("saved")
            asked.end()
    """)
    assert (ended.returncode, ended.stdout) == (143, "saved\n")


def test_patience_ends_when_the_time_is_over():
    ended = run("""
        termination.END_TIMEOUT_S = 0.0
        with asked.patient():
            os.kill(os.getpid(), number)
            print("asked")
            asked.check()
            print("patient")
    """)
    assert (ended.returncode, ended.stdout) == (143, "asked\n")


def test_what_can_be_given_up_is_given_up_and_patience_goes_on():
    ended = run("""
        with asked.patient():
            for attempt in range(2):  # the second time it does not begin
                try:
                    with asked.at_once():
                        if attempt == 0:
                            os.kill(os.getpid(), number)
                        print("never")
                except Terminated:
                    print("given up")
            print("saved")
            asked.end()
    """)
    assert (ended.returncode, ended.stdout) == (143, "given up\ngiven up\nsaved\n")


def test_nobody_has_asked():
    ended = run("""
        with asked.patient(), asked.at_once():
            asked.end()
            assert asked.check() > termination.END_TIMEOUT_S
    """)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_ignored_stays_ignored():
    ended = run(
        """
        signal.signal(number, signal.SIG_IGN)
        asked.install()
        os.kill(os.getpid(), number)
        print("still here")
    """,
        "SIGHUP",
    )
    assert (ended.returncode, ended.stdout) == (0, "still here\n")


def test_a_signal_that_says_of_a_failure_is_an_error_once():
    ended = run(
        """
        asked.take_for_failure(number, lambda: "a worker has failed")
        asked.install()
        with asked.patient():
            try:
                os.kill(os.getpid(), number)
            except RuntimeError as error:
                print(error)
            os.kill(os.getpid(), number)
            print("undisturbed", asked.asked)
    """,
        "SIGUSR1",
    )
    assert (ended.returncode, ended.stdout) == (0, "a worker has failed\nundisturbed False\n")


def test_a_run_that_has_ended_takes_nothing_for_a_failure():
    ended = run(
        """
        asked.take_for_failure(number, lambda: "a worker has failed")
        asked.ignore_failures()
        os.kill(os.getpid(), number)
        print("undisturbed")
    """,
        "SIGUSR1",
    )
    assert (ended.returncode, ended.stdout) == (0, "undisturbed\n")


def test_an_exit_that_ray_makes_of_a_request_is_the_request():
    ended = run(
        """
        with asked.through_ray():
            with asked.patient():
                os.kill(os.getpid(), number)
            sys.exit(1)
        """
    )
    assert ended.returncode == 143, ended.stderr


def test_an_exit_that_nobody_asked_for_stays_what_it_is():
    assert run("with asked.through_ray(): sys.exit(1)").returncode == 1


@pytest.mark.ray
def test_a_request_within_a_wait_of_ray_ends_the_process_with_its_status():
    ended = run(
        """
        import threading
        import ray

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        asked.install()

        @ray.remote
        class Silent:
            def answer(self):
                threading.Event().wait()

        waited = [Silent.remote().answer.remote()]
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        with asked.through_ray():
            ray.wait(waited)
        """
    )
    assert ended.returncode == 143, ended.stderr


def test_an_error_beside_which_ray_returns_a_result_is_the_failure_that_was_told():
    ended = run(
        """
        asked.take_for_failure(number, lambda: "a worker has failed")

        def result_and_error():
            try:
                os.kill(os.getpid(), number)
            except RuntimeError as told:
                raise SystemError("wait returned a result with an exception set") from told

        try:
            with asked.through_ray():
                result_and_error()
        except RuntimeError as error:
            print(error)
        try:
            with asked.through_ray():
                raise SystemError("of something else") from RuntimeError("another")
        except SystemError as error:
            print(error)
        """,
        "SIGUSR1",
    )
    assert (ended.returncode, ended.stdout) == (0, "a worker has failed\nof something else\n"), ended.stderr


@pytest.mark.ray
def test_a_failure_that_is_told_within_a_wait_of_ray_is_raised_with_its_words():
    ended = run(
        """
        import threading
        import ray

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        asked.take_for_failure(number, lambda: "a worker has failed")

        @ray.remote
        class Silent:
            def answer(self):
                threading.Event().wait()

        waited = [Silent.remote().answer.remote()]
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        try:
            with asked.through_ray():
                ray.wait(waited, timeout=3)
        except RuntimeError as error:
            print(error)
        """,
        "SIGUSR1",
    )
    assert (ended.returncode, ended.stdout) == (0, "a worker has failed\n"), ended.stderr

"""Probes that share an interpreter answer as if each had one of its own."""

from rlinf_async.observe.forking import ForkingInterpreter, shared_interpreter
from rlinf_async.observe.probes import output_of, probe

MARK = "import sys; sys.marks = [*getattr(sys, 'marks', []), 1]"
COUNT = "import sys; print(len(getattr(sys, 'marks', [])))"
GROUND = ("import os; started = os.environ.setdefault('FIRST_OF_ALL', str(os.getpid()))",)


def test_probes_with_a_ground_are_forked_from_one_process_and_others_are_not():
    parent = "import os; print(os.getppid(), os.environ.get('FIRST_OF_ALL'))"
    with shared_interpreter():
        first, second = (output_of(parent, ground=GROUND)[0].split() for _ in range(2))
        alone = output_of(parent)[0].split()
    assert first == second
    assert first[0] == first[1]
    assert alone[1] == "None"


def test_nothing_that_a_probe_sets_or_breaks_reaches_the_next_one():
    with shared_interpreter():
        assert probe(f"{MARK}; import os; os.environ['LEFT'] = '1'; sys.path.clear()", ground=["0"]) is None
        output, failure = output_of(f"{COUNT}; import os, json; print(os.environ.get('LEFT'))", ground=["0"])
    assert failure is None
    assert output.split() == ["0", "None"]


def test_a_probe_that_crashes_or_fails_has_its_own_verdict_and_the_next_one_too():
    ending = {
        "import os; os.abort()": "exit status -6",
        "raise SystemExit(3)": "exit status 3",
        "import sys; sys.exit('first\\nlast')": "last",
        "raise ValueError('no such thing')": "ValueError: no such thing",
        "print('fine')": None,
    }
    with shared_interpreter():
        assert {code: probe(code, ground=["import json"]) for code in ending} == ending
    assert {code: probe(code) for code in ending} == ending


def test_a_probe_that_hangs_ends_at_its_deadline_and_the_next_one_is_answered():
    hanging = "import threading; threading.Event().wait()"
    assert probe(hanging, timeout=1) == "no answer within 1 s"
    with shared_interpreter():
        assert probe(hanging, ground=["0"], timeout=1) == "no answer within 1 s"
        assert output_of("print(1)", ground=["0"]) == ("1\n", None)


def test_a_ground_that_crashes_leaves_the_probe_an_interpreter_of_its_own():
    with shared_interpreter():
        assert output_of("print(1)", ground=["import os; os.abort()"]) == ("1\n", None)
        assert output_of("print(2)", ground=["raise ImportError('absent')"]) == ("2\n", None)


def test_where_there_are_threads_nothing_is_forked():
    threads = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    with ForkingInterpreter() as interpreter:
        assert interpreter.run("print(1)", env={}, ground=["0"], timeout=60) is not None
        assert interpreter.run("print(1)", env={}, ground=[threads], timeout=60) is None


def test_a_probe_has_the_environment_that_it_is_given():
    with shared_interpreter():
        asks = "import os; print(os.environ['ASKED'])"
        assert output_of(asks, env={"ASKED": "yes"}, ground=["0"]) == ("yes\n", None)
        assert probe(asks, ground=["0"]) == "KeyError: 'ASKED'"

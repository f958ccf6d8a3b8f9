"""Which runs are made when tests share a process."""

from pathlib import Path

from tests.runs.conftest import made_once, part, small
from tests.runs.several import BEGINS, ENDS

ON, OFF = small("a", "async.mode=full"), small("a", "async.mode=off")


def test_what_several_tests_ask_for_is_run_once_and_twins_of_one_test_are_two():
    cases, of_test = made_once({"one": [ON], "pair": [OFF, OFF], "other": [OFF, ON]})
    assert cases == [ON, OFF, OFF]
    assert of_test == {"one": [0], "pair": [1, 2], "other": [1, 0]}


def test_an_earlier_run_is_that_of_the_same_test():
    first, going_on = small("a", "b=1"), small("a", "resume={run-0}/saved")
    cases, of_test = made_once({"one": [ON], "resumes": [first, going_on], "off": [OFF, going_on]})
    assert of_test == {"one": [0], "resumes": [1, 2], "off": [3, 4]}
    assert cases[2] == small("a", "resume={run-1}/saved")
    assert cases[4] == small("a", "resume={run-3}/saved")


def test_a_run_that_has_not_begun_has_failed():
    lines = [BEGINS.format(0), "well", ENDS.format(0, 0), BEGINS.format(1), ENDS.format(1, 1)]
    output = "".join(f"{line}\n" for line in lines)
    made = [part(output, number, Path()) for number in range(3)]
    assert [run.status for run in made] == [0, 1, 1]
    assert made[0].output == "well\n"

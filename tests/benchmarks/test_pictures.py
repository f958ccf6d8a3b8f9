"""What is said of gradients of runs with pictures follows from the runs, by the rule that was set before."""

from benchmarks.learning import pictures
from benchmarks.learning.pictures import LARGE_NORM, large, verdict


def found(large_ones, seeds=5):
    norms = [LARGE_NORM + 1] * large_ones + [LARGE_NORM] * (30 * seeds - large_ones)
    return [
        {"gradient_norm": norms[30 * seed : 30 * (seed + 1)], "success": [0.5] * 30} for seed in range(seeds)
    ]


def test_the_question_is_about_the_runs_that_are_stored():
    assert large(pictures.before("asynchronous")) == 8
    assert large(pictures.before("synchronous")) == 1


def test_two_large_gradients_are_few_enough_to_name_the_cause_and_three_are_not():
    assert verdict(found(2)) == " was the cause, by the rule."
    assert verdict(found(3)) == " is not shown to be the cause."


def test_nothing_is_said_before_all_seeds_are_there():
    assert verdict(found(0, seeds=4)) == ": 4 of 5 seeds are there; with fewer nothing is claimed."

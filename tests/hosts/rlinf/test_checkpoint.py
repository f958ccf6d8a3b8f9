from collections import Counter

import pytest

from rlinf_async.core.buffer import Ledger
from rlinf_async.hosts.rlinf.checkpoint import read_ledger, resume_step, write_ledger


def books(**changes):
    given = {"produced": 9, "trained": 6, "env_steps_trained": 600, "refused": Counter(stale=3)}
    return Ledger(**given | changes)


def test_books_that_are_closed_are_read_as_they_were_written(tmp_path):
    write_ledger(tmp_path, version=4, ledger=books())
    assert read_ledger(str(tmp_path)) == books()


def test_what_was_in_flight_is_lost_and_said_so(tmp_path):
    write_ledger(tmp_path, version=4, ledger=books(produced=14))
    resumed = read_ledger(str(tmp_path))
    assert resumed.refused == {"stale": 3, "lost at resume": 5}
    resumed.check(0)


def test_losses_of_several_resumes_add_up(tmp_path):
    ledger = books(produced=14)
    for _ in range(2):
        write_ledger(tmp_path, version=4, ledger=ledger)
        ledger = read_ledger(str(tmp_path))
        ledger.produced += 2
    assert ledger.refused["lost at resume"] == 5 + 2


def test_without_a_checkpoint_the_books_are_empty(tmp_path):
    assert read_ledger(None) == read_ledger(str(tmp_path)) == Ledger()


@pytest.mark.parametrize("end", ["", "/"])
def test_the_step_is_that_of_the_directory(tmp_path, end):
    (tmp_path / "global_step_12" / "actor").mkdir(parents=True)
    assert resume_step(f"{tmp_path}/global_step_12{end}") == 12


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_run_that_is_not_resumed_starts_at_zero(nothing):
    assert resume_step(nothing) == 0


def test_a_directory_of_another_name_is_refused():
    with pytest.raises(ValueError, match="must end in global_step_N"):
        resume_step("/runs/last")


def test_a_directory_without_an_actor_is_refused(tmp_path):
    (tmp_path / "global_step_3").mkdir()
    with pytest.raises(ValueError, match="has no directory actor"):
        resume_step(str(tmp_path / "global_step_3"))

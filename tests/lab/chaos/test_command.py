"""`rlinf-async chaos` on the records of a run."""

import io
import json
import time

import pytest
from rich.console import Console

from rlinf_async.lab.chaos.command import chaos
from rlinf_async.observe.failures import record_failure
from tests.lab.chaos.making import started_in, status


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def end(run_dir):
    (run_dir / "summary.json").write_text(json.dumps({"steps": 9, "seconds": 4.0}))


@pytest.mark.parametrize(
    ("processes", "changed", "said"),
    [
        ({"env worker 0": 1}, {"kinds": ["learner"]}, "--kinds learner: there are simulator, env, inference"),
        ({"env worker 0": None}, {}, "no process of the run"),
    ],
)
def test_it_does_not_begin_where_there_is_nothing_to_kill(tmp_path, console, processes, changed, said):
    status(tmp_path, processes, time=time.time())
    with pytest.raises(ValueError, match=said):
        chaos(tmp_path, console, **{"every_s": 1.0, "kinds": ["env"], "seed": 0, **changed})


def test_a_run_that_has_ended_or_has_died_is_no_victim(tmp_path, console):
    status(tmp_path, {"env worker 0": 1}, time=time.time() - 60)
    with pytest.raises(ValueError, match="has said nothing for 60 s"):
        chaos(tmp_path, console, every_s=1.0, kinds=["env"], seed=0)
    end(tmp_path)
    with pytest.raises(ValueError, match="has ended; chaos is for one that goes on"):
        chaos(tmp_path, console, every_s=1.0, kinds=["env"], seed=0)


def test_it_kills_until_the_run_has_ended_and_says_what_that_has_come_to(tmp_path, console):
    record_failure(tmp_path, process="env worker 0", what="silent", error="earlier", action="again")
    with started_in(tmp_path) as process:
        status(tmp_path, {"inference rank 0": process.pid}, time=time.time())

        def wait(seconds):
            process.wait()
            record_failure(tmp_path, process="x", what="inference rank died", error="it", action="again")
            end(tmp_path)

        # Once: nobody of the test is there any more when the next would be killed.
        assert chaos(tmp_path, console, every_s=0.1, kinds=["inference"], seed=0, wait=wait)
    said = console.file.getvalue()
    assert f"killed inference rank 0 (pid {process.pid})" in said
    assert "the run has ended" in said
    assert "1 fault: inference rank died 1" in said


def test_an_interrupt_leaves_the_run_alone(tmp_path, console):
    def wait(seconds):
        raise KeyboardInterrupt

    with started_in(tmp_path) as process:
        status(tmp_path, {"env worker 0": process.pid}, time=time.time())
        assert chaos(tmp_path, console, every_s=60.0, kinds=["env"], seed=0, wait=wait)
        assert process.poll() is None
    assert "killed: nobody; the run goes on" in console.file.getvalue()


def test_a_run_that_falls_silent_is_one_that_did_not_outlive_it(tmp_path, console):
    def wait(seconds):
        status(tmp_path, {"env worker 0": process.pid}, time=time.time() - 60)

    with started_in(tmp_path) as process:
        status(tmp_path, {"env worker 0": process.pid}, time=time.time())
        assert not chaos(tmp_path, console, every_s=60.0, kinds=["env"], seed=0, wait=wait)
    assert "says nothing any more" in console.file.getvalue()

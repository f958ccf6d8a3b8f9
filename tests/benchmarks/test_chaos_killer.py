"""A run whose processes are killed again and again."""

import signal

from benchmarks.chaos.victims import Killer
from tests.benchmarks.making_victims import started_in, status


def test_processes_are_killed_once_the_run_has_begun_until_it_has_ended(tmp_path):
    said = []
    with started_in(tmp_path) as process:
        status(tmp_path, {"inference rank 0": process.pid}, step=3)
        killer = Killer(tmp_path, every_s=0.01, first_step=3, seed=0, on_kill=said.append)
        killer.start()
        assert process.wait() == -signal.SIGKILL
        killer.stop()
    assert process.pid in [victim.pid for victim in killer.killed]
    assert said == killer.killed


def test_nobody_is_killed_before_the_run_has_trained(tmp_path):
    with started_in(tmp_path) as process:
        status(tmp_path, {"inference rank 0": process.pid}, step=2)
        killer = Killer(tmp_path, every_s=0.0, first_step=3, seed=0)
        killer.start()
        killer.stop()
        assert process.poll() is None
    assert killer.killed == []


def test_nobody_of_a_kind_that_was_not_named_is_killed(tmp_path):
    with started_in(tmp_path) as process:
        status(tmp_path, {"inference rank 0": process.pid})
        killer = Killer(tmp_path, every_s=0.0, first_step=3, seed=0, kinds=["env", "simulator"])
        killer._kill_one()
        assert process.poll() is None
    assert killer.killed == []

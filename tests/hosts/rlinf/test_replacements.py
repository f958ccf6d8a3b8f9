"""Which class runs instead of which."""

import pytest
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Worker
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.env.env_worker import EnvWorker

from rlinf_async.hosts.rlinf.borrowed import EmbodiedFSDPActor
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.replacements import replacement, replacements, runner_replacement
from rlinf_async.hosts.rlinf.runner import AsyncEmbodiedRunner


class CalibratedEnvWorker(EnvWorker):
    """What a package that plugs into RLinf adds: another step, and something of its own."""

    def env_interact_step(self, chunk_actions, stage_id):
        return ("calibrated", chunk_actions), {}

    def calibrate(self):
        return "done"


class EagerEnvWorker(AsyncEnvWorker):
    async def interact(self, *channels):
        raise AssertionError("the loops of rlinf-async do not call this")


class CoffeeWorker(Worker):
    pass


class PatientRunner(EmbodiedRunner):
    pass


def test_a_subclass_keeps_what_it_adds_behind_our_class():
    made = replacement(CalibratedEnvWorker)
    assert issubclass(made, ShardedEnvWorker)
    assert issubclass(made, CalibratedEnvWorker)
    assert made.env_interact_step is CalibratedEnvWorker.env_interact_step
    assert made.calibrate is CalibratedEnvWorker.calibrate
    assert made.interact is ShardedEnvWorker.interact
    assert made.__name__ == "AsyncCalibratedEnvWorker"


def test_a_subclass_whose_own_loop_would_be_lost_is_refused_by_its_name_and_methods():
    with pytest.raises(ValueError, match=r"EagerEnvWorker overrides interact of RLinf's AsyncEnvWorker"):
        replacement(EagerEnvWorker)


def test_a_worker_that_we_do_not_know_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"test_replacements\.CoffeeWorker is no worker"):
        replacement(CoffeeWorker)


def test_a_runner_of_the_users_is_refused_and_a_subclass_of_ours_is_kept():
    with pytest.raises(ValueError, match=r"test_replacements\.PatientRunner is a runner"):
        runner_replacement(PatientRunner)
    ours = type("TheirRunner", (AsyncEmbodiedRunner,), {})
    assert runner_replacement(ours) is ours


def test_what_is_replaced_is_named_as_the_rlinf_that_is_here_names_it():
    names = replacements()
    assert f"{EmbodiedFSDPActor.__module__}.EmbodiedFSDPActor" in names
    assert len(names) == 4

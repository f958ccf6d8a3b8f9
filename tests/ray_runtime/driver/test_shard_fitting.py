"""The decision after the first step, with workers that only answer."""

from types import SimpleNamespace

import pytest

from rlinf_async.core.shard_fit import throughput
from rlinf_async.core.shard_times import ShardTimes
from rlinf_async.observe.meters import Spread
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.driver.shard_fitting import ShardFitting
from tests.making import plan, run_settings

CROWDED_S, LONG_S = 0.03, 2.0


def times(step_s):
    """Shards whose env worker's interpreter works 3 ms for each decision."""
    rate = throughput(16, away_s=step_s, work_s=0.003)
    return ShardTimes(resets=[0.0] * 16, steps=[[step_s]] * 16, decision_s=16 / rate, cpu_s=0.001)


class Fleet:
    """Answers of workers; calls of the coordinator, and waits, are noted."""

    def __init__(self, step_s):
        self.step_s, self.calls = step_s, []

    def run_on_living(self, group, method):
        return {"env": [times(self.step_s)], "inference": [0.001], "requests": [Spread()]}[group]

    def run(self, group, method, *arguments):
        self.calls.append((method.__name__, *(one.plan.shards_per_worker for one in arguments)))
        return [3]

    def wait(self, loops, purpose):
        self.calls.append(("wait", *loops))


def fitting(tmp_path, step_s=CROWDED_S, choices=(2, 4, 8)):
    settings = run_settings(plan=plan(total_envs=16, shards_per_worker=16), shard_choices=choices)
    records = RunDir(tmp_path)
    records.begin(settings.facts(), title="a run", versions={})
    said: list[str] = []
    fleet = Fleet(step_s)
    return SimpleNamespace(
        fleet=fleet, said=said, records=records, of=ShardFitting(fleet, settings, records, say=said.append)
    )


def after(one, step, undisturbed=True):
    return one.of.after(step, env_loops=["loop"], undisturbed=lambda: undisturbed)


def test_crowded_shards_are_joined_when_the_batches_that_have_begun_are_collected(tmp_path):
    one = fitting(tmp_path)
    assert after(one, 1) is None
    assert one.fleet.calls == [("pause",)]
    settings = after(one, 2)
    shards = settings.plan.shards_per_worker
    assert shards in (2, 4, 8)
    assert one.fleet.calls[1:] == [("wait", "loop"), ("go_on", shards)]
    assert settings.shard_choices == ()
    facts = RunReader(one.records.path).facts()
    assert facts["plan"]["shards_per_worker"] == facts["shard_fit"]["shards"] == shards
    assert facts["shard_fit"]["before"] == 16
    assert f"{shards} shards per env worker follow the 16" in one.said[0]
    assert [after(one, step) for step in (3, 4)] == [None, None]


def test_long_decisions_leave_the_gate_alone(tmp_path):
    one = fitting(tmp_path, step_s=LONG_S)
    assert [after(one, step) for step in (1, 2, 3)] == [None, None, None]
    assert one.fleet.calls == []
    assert "16 shards per env worker are kept" in one.said[0]
    assert RunReader(one.records.path).facts()["plan"]["shards_per_worker"] == 16


def test_a_run_without_a_choice_asks_nobody(tmp_path):
    one = fitting(tmp_path, choices=())
    assert after(one, 1) is None
    assert (one.fleet.calls, one.said) == ([], [])


@pytest.mark.parametrize("died_after", [0, 1])
def test_after_the_death_of_an_env_worker_the_number_is_kept_and_the_loops_begin_again(tmp_path, died_after):
    one = fitting(tmp_path)
    assert after(one, 1, undisturbed=died_after > 0) is None
    settings = after(one, 2, undisturbed=False)
    if died_after == 0:
        assert settings is None
        assert one.fleet.calls == []
    else:
        assert settings.plan.shards_per_worker == 16
        assert ("go_on", 16) in one.fleet.calls

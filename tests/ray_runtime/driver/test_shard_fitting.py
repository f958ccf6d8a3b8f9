"""The decisions after the first steps, with workers that only answer."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlinf_async.core.shard_fit import throughput
from rlinf_async.core.shard_times import ShardTimes
from rlinf_async.observe.meters import Spread
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.driver.shard_fitting import LEAST_STEPS_LEFT, ShardFitting
from tests.making import plan, run_settings

CROWDED_S, LONG_S = 0.03, 2.0


def times(step_s, shards=16):
    """Shards whose env worker's interpreter works 3 ms for each decision."""
    rate = throughput(shards, away_s=step_s, work_s=0.003)
    return ShardTimes(resets=[0.0] * shards, steps=[[step_s]] * shards, decision_s=shards / rate, cpu_s=0.001)


class Fleet:
    """Answers of workers; calls of the coordinator, and waits, are noted."""

    def __init__(self, step_s):
        self.times, self.passes, self.calls = times(step_s), Spread(), []
        self.passes.add(0.001)
        self.begun = 3
        """The batches that have begun when the gate pauses."""

    def run_on_living(self, group, method):
        answers = {
            "env": [self.times],
            "inference": [self.passes and replace(self.passes)],
            "requests": [Spread()],
        }
        return answers[group]

    def run(self, group, method, *arguments):
        self.calls.append((method.__name__, *(one.plan.shards_per_worker for one in arguments)))
        return [self.begun]

    def wait(self, loops, purpose):
        self.calls.append(("wait", *loops))


def fitting(tmp_path, step_s=CROWDED_S, choices=(2, 4, 8), total=100):
    settings = run_settings(plan=plan(total_envs=16, shards_per_worker=16), shard_choices=choices)
    records = RunDir(tmp_path)
    records.begin(settings.facts(), title="a run", versions={})
    said: list[str] = []
    fleet = Fleet(step_s)
    return SimpleNamespace(
        fleet=fleet,
        said=said,
        records=records,
        of=ShardFitting(fleet, settings, records, total=total, say=said.append),
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
    assert settings.shard_choices == tuple(choice for choice in (2, 4, 8) if choice < shards)
    facts = RunReader(one.records.path).facts()
    (fit,) = facts["shard_fits"]
    assert facts["plan"]["shards_per_worker"] == fit["shards"] == shards
    assert fit["before"] == 16
    assert f"{shards} shards per env worker follow the 16" in one.said[0]


def joined(tmp_path):
    """A run that has joined its 16 shards to 8, whose first batch is being trained."""
    one = fitting(tmp_path)
    # Each pair of neighbours has a slow decision of its own, so that larger shards take longer.
    slow, fast = 7 * CROWDED_S, CROWDED_S / 7
    pairs = [[slow if number == pair else fast for number in range(8)] for pair in range(8)]
    one.fleet.times = replace(times(CROWDED_S), steps=[pairs[shard // 2] for shard in range(16)])
    after(one, 1)
    assert after(one, 2).plan.shards_per_worker == 8
    one.fleet.calls.clear()
    assert after(one, 3) is None
    assert one.fleet.calls == []
    return one


def test_joined_shards_are_measured_again_and_joined_once_more_at_most(tmp_path):
    one = joined(tmp_path)
    one.fleet.times, one.fleet.begun = times(CROWDED_S / 8, 8), 6
    assert after(one, 4) is None
    assert one.fleet.calls == [("pause",)]
    settings = after(one, 5)
    shards = settings.plan.shards_per_worker
    assert shards in (2, 4)
    facts = RunReader(one.records.path).facts()
    assert [(fit["before"], fit["shards"]) for fit in facts["shard_fits"]] == [(16, 8), (8, shards)]
    one.fleet.times = times(0.0, shards)
    one.fleet.calls.clear()
    assert [after(one, step) for step in range(6, 12)] == [None] * 6
    assert one.fleet.calls == []


def test_joined_shards_that_are_not_crowded_stay(tmp_path):
    one = joined(tmp_path)
    one.fleet.times = times(LONG_S, 8)
    assert [after(one, step) for step in range(4, 8)] == [None] * 4
    assert one.fleet.calls == []
    assert "8 shards per env worker are kept" in one.said[1]
    one.fleet.times = times(0.0, 8)
    assert after(one, 8) is None  # it does not look a third time
    assert len(one.said) == 2


def test_the_second_look_counts_answers_since_the_change_alone(tmp_path):
    one = joined(tmp_path)
    one.fleet.passes.add(LONG_S)
    one.fleet.times = times(LONG_S, 8)
    after(one, 4)
    assert RunReader(one.records.path).facts()["shard_fits"][1]["answer_s"] == pytest.approx(LONG_S)


def test_long_decisions_leave_the_gate_alone(tmp_path):
    one = fitting(tmp_path, step_s=LONG_S)
    assert [after(one, step) for step in (1, 2, 3)] == [None, None, None]
    assert one.fleet.calls == []
    assert "16 shards per env worker are kept" in one.said[0]
    assert RunReader(one.records.path).facts()["plan"]["shards_per_worker"] == 16


def test_a_run_near_its_end_keeps_its_shards(tmp_path):
    one = fitting(tmp_path, total=LEAST_STEPS_LEFT)
    assert [after(one, step) for step in range(1, LEAST_STEPS_LEFT)] == [None] * (LEAST_STEPS_LEFT - 1)
    assert (one.fleet.calls, one.said) == ([], [])


def test_a_dead_inference_rank_leaves_the_number_of_shards_alone(tmp_path):
    one = fitting(tmp_path)
    one.fleet.passes = None
    assert [after(one, step) for step in (1, 2)] == [None, None]
    assert (one.fleet.calls, one.said) == ([], [])


def test_shards_without_a_smaller_number_are_not_measured_again(tmp_path):
    one = fitting(tmp_path, choices=(8,))
    after(one, 1)
    assert after(one, 2).shard_choices == ()
    one.fleet.times, said = times(0.0, 8), len(one.said)
    assert [after(one, step) for step in range(3, 8)] == [None] * 5
    assert len(one.said) == said


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

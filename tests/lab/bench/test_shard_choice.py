"""The number of shards that a run would choose in each emulated scenario, by the times of its simulators."""

from itertools import islice

import pytest

from rlinf_async.core.shard_fit import fit_shards, throughput
from rlinf_async.core.shard_times import ShardTimes
from rlinf_async.hosts.simulators import USUAL_WORK_S
from rlinf_async.lab.bench.scenarios import EMULATED_SCENARIOS, SCENARIOS_BY_NAME
from rlinf_async.lab.emulated.service import decisions, resets

CHOICES = (2, 4, 8, 16, 32)
SPLIT = [one for one in EMULATED_SCENARIOS if not one.env.vectorised_s]


def fit(scenario, *, work_s=USUAL_WORK_S):
    """The choice of a run whose answers take half a pass of waiting, and a pass with a quarter of the
    environments."""
    env, answer_s = scenario.env, 1.5 * scenario.policy.act_s(scenario.envs // 4)
    steps = [_rollout(scenario, number) for number in range(scenario.envs)]
    mean = sum(map(sum, steps)) / sum(map(len, steps))
    rate = throughput(scenario.envs, away_s=mean + answer_s, work_s=work_s)
    times = ShardTimes(
        resets=[next(resets(env, number, seed=1)) for number in range(scenario.envs)],
        steps=steps,
        decision_s=scenario.envs / rate,
        cpu_s=work_s / 2,
    )
    return fit_shards([times], answer_s=answer_s, choices=CHOICES)


def _rollout(scenario, number):
    env, length = scenario.env, scenario.decisions
    if env.lengths is not None:
        length = min(length, int(env.lengths.draw(number, 0, horizon=scenario.decisions, seed=1)))
    drawn = islice(decisions(env, number, seed=1), length)
    return [one.seconds + one.reset_s + env.device_s for one in drawn]


@pytest.mark.parametrize("scenario", SPLIT, ids=lambda scenario: scenario.name)
def test_fast_simulators_alone_get_fewer_shards(scenario):
    found = fit(scenario)
    if scenario.name == "fast":
        assert found.shards in (8, 16)
        assert found.gain > 1.5
    else:
        assert found.shards == 64


def test_on_a_machine_whose_python_works_longer_other_scenarios_would_join_theirs():
    assert fit(SCENARIOS_BY_NAME["libero"], work_s=5 * USUAL_WORK_S).shards < 64

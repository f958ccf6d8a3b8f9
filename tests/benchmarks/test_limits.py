"""The bound that no mode can be faster than, and how near to it modes are planned to come."""

import pytest

from benchmarks.schedules import limits
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.emulated.service import decisions, resets
from rlinf_async.lab.plan.bench import FIRST_SEED, Steps


def test_an_environment_alone_takes_its_decisions_their_answers_and_its_resets():
    libero = SCENARIOS_BY_NAME["libero"]

    def alone(env):
        playing, resetting = (
            decisions(libero.env, env, seed=FIRST_SEED),
            resets(libero.env, env, seed=FIRST_SEED),
        )
        return sum(next(playing).seconds for _ in range(8 * 3)) + sum(next(resetting) for _ in range(3))

    slowest = max(map(alone, range(64))) / 3 + 8 * (0.01 + 0.0003)
    assert limits.bound_s(libero, 3) == pytest.approx(slowest)


def test_simulators_that_step_at_once_take_as_long_as_they_say():
    assert limits.bound_s(SCENARIOS_BY_NAME["maniskill"], 5) == pytest.approx(
        8 * 0.3 + 0.3 + 8 * (0.01 + 0.0003)
    )


def test_where_training_takes_longest_it_is_the_bound():
    scenario = SCENARIOS_BY_NAME["train-bound"]
    samples = scenario.samples * scenario.update_epoch
    assert limits.bound_s(scenario, 5) == pytest.approx(samples * scenario.policy.train_sample_s)


def test_without_costs_a_mode_comes_nearer_to_the_bound(monkeypatch, capsys):
    monkeypatch.setattr(limits, "WINDOW", Steps(warm_up=2, measured=4, batches=8))
    monkeypatch.setattr(limits, "SHOWN", (("maniskill", "full"),))
    (found,) = limits.limits()
    assert 0.7 < found.with_costs < found.without <= 1.0
    limits.main()
    assert (
        f"| `maniskill` | `full` | {found.with_costs:.3f} | {found.without:.3f} |" in capsys.readouterr().out
    )

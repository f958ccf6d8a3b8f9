"""How fast a step can be at most, as far as service times say."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf_async.bench.modes import Mode
from rlinf_async.bench.scenario import Scenario
from rlinf_async.bench.window import Environment, Window


def bounds_of(environments: Mapping[int, Environment], scenario: Scenario) -> dict[str, float]:
    """Seconds that a step takes at least if one part had to wait for nothing; {} if nothing is known.

    The same for every mode: batches hold as much of every environment, so that the slowest counts, with the
    shortest possible answer to each of its decisions; inference answers all environments at once, and
    simulators have its device for as long as they need it; the learner trains on every sample, once per
    epoch, and does nothing else.
    """
    env, policy = scenario.env, scenario.policy
    if env is None or policy is None:
        return {}
    return {
        "env": max(_rollouts(environments, scenario)),
        "inference": scenario.decisions * (policy.act_s(scenario.envs) + scenario.envs * env.device_s),
        "learner": policy.train_sample_s * scenario.update_epoch * scenario.samples,
    }


def own_bounds_of(
    window: Window, environments: Mapping[int, Environment], scenario: Scenario, mode: Mode
) -> dict[str, float]:
    """The same with the work that a mode makes itself: every pass of its learner, and its own shares.

    Where fast environments may contribute more than slow ones, what counts is what all can do together.
    """
    bounds = bounds_of(environments, scenario)
    if not bounds:
        return {}
    rollouts = _rollouts(environments, scenario)
    together = len(rollouts) / sum(1.0 / seconds for seconds in rollouts)
    return {
        **bounds,
        "env": together if mode.free else bounds["env"],
        "learner": window.busy_s("train", "score") / window.steps,
    }


def _rollouts(environments: Mapping[int, Environment], scenario: Scenario) -> list[float]:
    """Seconds that each environment needs for its decisions of a step, and what it has to be reset for."""
    env, policy = scenario.env, scenario.policy
    assert env is not None
    assert policy is not None
    answer = policy.act_s(scenario.envs if env.vectorised_s else 1)
    return [scenario.decisions * (one.busy_s / one.decisions + answer) for one in environments.values()]

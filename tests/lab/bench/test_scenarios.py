import fcntl
import threading
from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from omegaconf import OmegaConf

from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.config import read_fit, resolve
from rlinf_async.lab.bench import command
from rlinf_async.lab.bench.measure import Environment, bounds_of
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import BENCH_MODES, STANDARD_MODES
from rlinf_async.lab.emulated.env import EmulatedEnv
from rlinf_async.lab.emulated.service import EmulatedBatch, EnvService, decisions, holding

PLACED = {"env": 1, "rollout": 1, "actor": 1}


EMULATED = [name for name, scenario in SCENARIOS_BY_NAME.items() if scenario.env]


@pytest.mark.parametrize("name", SCENARIOS_BY_NAME)
def test_a_scenario_is_a_run_that_our_levels_accept_with_the_batch_that_it_says(name):
    scenario = SCENARIOS_BY_NAME[name]
    cfg = compose_config(scenario.config, [*scenario.overrides(log="log"), "async.mode=full"])
    settings = resolve(cfg, sizes=PLACED)
    assert settings.samples_per_batch == scenario.samples
    assert settings.steps_per_decision == scenario.chunk
    assert settings.optimizer_steps == scenario.optimizer_steps


@pytest.mark.parametrize("name", EMULATED)
def test_emulated_simulators_have_a_shard_each_unless_they_are_vectorised(name):
    scenario = SCENARIOS_BY_NAME[name]
    cfg = compose_config(scenario.config, [*scenario.overrides(log="log"), "async.mode=full"])
    shards = resolve(cfg, sizes=PLACED).plan.shards
    assert shards == (1 if scenario.env.vectorised_s else scenario.envs)


PAIRS = [
    (scenario, mode)
    for scenario in SCENARIOS_BY_NAME.values()
    for mode in BENCH_MODES.values()
    if mode.name not in scenario.without
]


@pytest.mark.parametrize(("scenario", "mode"), PAIRS, ids=lambda of: of.name)
def test_a_mode_is_what_it_says_whatever_the_scenarios_config_turns_on(scenario, mode):
    cfg = compose_config(scenario.config, [*scenario.overrides(log="log"), *mode.overrides_for(scenario)])
    assert read_fit(cfg).asynchrony.active == (mode.kind == "plugin")
    if mode.kind == "plugin":
        settings = resolve(cfg, sizes=PLACED)
        assert settings.samples_per_batch == scenario.samples
        passes = settings.micro_batches_per_step * scenario.optimizer_steps * scenario.update_epoch
        assert passes == scenario.micro_batches


@pytest.mark.parametrize(
    ("scenario", "mode"), [pair for pair in PAIRS if pair[1].wiring == "async-ppo"], ids=lambda of: of.name
)
def test_rlinfs_asynchronous_modes_store_a_trajectory_of_every_env_worker_for_a_step(scenario, mode):
    cfg = compose_config(scenario.config, [*scenario.overrides(log="log"), *mode.overrides_for(scenario)])
    placed = str(cfg.cluster.component_placement.env.placement)
    workers = 1 + int(placed.split("-")[1]) if "-" in placed else 1
    assert cfg.algorithm.rollout_store_size_per_rank == workers
    assert workers == (8 if mode.name == "stock-decoupled" else scenario.env_workers)
    assert cfg.env.train.total_num_envs % workers == 0
    assert bool(cfg.runner.get("enable_decoupled_mode")) == (mode.name == "stock-decoupled")


@pytest.mark.parametrize("name", SCENARIOS_BY_NAME)
def test_a_scenario_runs_in_all_modes_but_those_that_it_names(name, monkeypatch):
    monkeypatch.setattr(command, "unavailable", lambda scenario, host: None)
    run = {cell.mode for cell in command.plan(scenarios=[name], modes=None, repetitions=1)}
    scenario = SCENARIOS_BY_NAME[name]
    extra = command.DEAD_WORK_NAMES if scenario.ends_early else ()
    assert run == {*STANDARD_MODES, *extra} - set(scenario.without)


def expected(scenario):
    """What environments would do in a window if all their draws were the mean ones."""
    return {
        env: Environment(
            decisions=scenario.decisions,
            played=scenario.decisions,
            live_s=scenario.decisions * scenario.env.factor(env) * scenario.env.decision_s
            + scenario.env.reset_s,
        )
        for env in range(10)
    }


@pytest.mark.parametrize(("name", "share"), [("balanced", 1), ("four-epochs", 1), ("libero", 1 / 2)])
def test_training_takes_its_share_of_what_the_slowest_environment_is_expected_to_take(name, share):
    scenario = SCENARIOS_BY_NAME[name]
    bounds = bounds_of(expected(scenario), scenario)
    assert bounds["learner"] == pytest.approx(share * bounds["env"], rel=1e-3)


def test_fast_simulators_take_20_to_50_ms_and_widely_spread_ones_eight_times_as_long_as_each_other():
    fast, wide = SCENARIOS_BY_NAME["fast"].env, SCENARIOS_BY_NAME["wide-spread"].env
    seconds = [fast.decision_s * fast.factor(env) for env in range(10)]
    assert (min(seconds), max(seconds)) == (pytest.approx(0.021), pytest.approx(0.049))
    assert wide.factor(9) / wide.factor(0) == pytest.approx(8.0)


def test_a_collocated_scenario_names_a_device_for_its_simulators_and_its_policy_alone():
    scenario = SCENARIOS_BY_NAME["collocated"]
    cfg = compose_config(scenario.config, scenario.overrides(log="log"))
    assert cfg.env.train.service_device == cfg.actor.model.service_device == "log/device"
    libero = SCENARIOS_BY_NAME["libero"]
    assert compose_config(libero.config, libero.overrides(log="log")).env.train.service_device is None


def test_one_has_a_device_at_a_time(tmp_path):
    device = str(tmp_path / "device")
    with holding(device), open(device) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with holding(device), holding(None):
        pass


def test_simulators_draw_one_after_the_other_on_the_device(tmp_path, monkeypatch):
    held, slept = [], []
    monkeypatch.setattr(
        "rlinf_async.lab.emulated.service.holding",
        lambda device: held.append(device) or nullcontext(),
    )
    monkeypatch.setattr("time.sleep", slept.append)
    service = EnvService(decision_s=1.0, reset_s=2.0, device_s=0.25)
    batch = EmulatedBatch(service, 4, first=0, seed=0, device="device")
    batch.reset()
    assert not held
    seconds, _ = batch.step()
    assert held == ["device"]
    assert slept[1:] == [1.0, 4 * 0.25]
    assert seconds == [1.25] * 4


def test_an_environment_takes_the_same_time_in_whatever_shard_it_is():
    service = EnvService(decision_s=1.0, cv=0.5)
    alone, again = ([one.seconds for one in islice(decisions(service, 3, seed=1), 5)] for _ in range(2))
    assert alone == again
    other = [one.seconds for one in islice(decisions(service, 4, seed=1), 5)]
    assert alone != other


def test_decisions_have_the_mean_and_the_spread_that_are_asked_for():
    service = EnvService(decision_s=2.0, cv=0.3, fastest=0.7, slowest=1.4)
    for env, factor in ((0, 0.7), (9, 1.4), (19, 1.4)):
        drawn = np.array([one.seconds for one in islice(decisions(service, env, seed=0), 20_000)])
        assert drawn.mean() == pytest.approx(2.0 * factor, rel=0.02)
        assert drawn.std() / drawn.mean() == pytest.approx(0.3, rel=0.05)


def test_spikes_and_resets_are_as_frequent_as_is_said():
    service = EnvService(decision_s=1.0, spike_share=0.05, spike_factor=20.0, reset_s=1.0, episode=8.0)
    drawn = list(islice(decisions(service, 0, seed=0), 20_000))
    assert np.mean([one.seconds for one in drawn]) == pytest.approx(1.95, rel=0.05)
    assert np.mean([one.ends for one in drawn]) == pytest.approx(1 / 8, rel=0.1)
    resets = [one.reset_s for one in drawn if one.ends]
    assert min(resets) >= 4 / 7
    assert max(resets) <= 10 / 7


def test_environments_that_step_together_wait_for_the_slowest(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    batch = EmulatedBatch(EnvService(decision_s=1.0, cv=0.5, reset_s=2.0), 4, first=0, seed=0)
    seconds, ended = batch.step()
    assert slept == [max(seconds)]
    assert len(set(seconds)) == 4
    assert not any(ended)
    assert max(batch.reset()) == slept[1]


def test_environments_take_as_long_as_the_tasks_that_they_have_taken_on(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    service = EnvService(decision_s=1.0, cv=0.5, fastest=0.5, slowest=2.0, reset_s=2.0)
    own, taking = (EmulatedBatch(service, 2, first=4, seed=0) for _ in range(2))
    before = own.step()[0]
    taking.take_on(8)
    assert taking.first == 8
    ratio = [service.factor(env + 4) / service.factor(env) for env in (4, 5)]
    assert taking.step()[0] == pytest.approx([one * more for one, more in zip(before, ratio, strict=True)])
    assert taking.reset() == own.reset()
    taking.take_on(4)
    assert taking.step() == own.step()


def test_an_emulated_environment_shows_whose_rollout_it_plays():
    section = {"auto_reset": False, "ignore_terminations": True, "max_steps_per_rollout_epoch": 4, "seed": 0}
    env = EmulatedEnv(OmegaConf.create({**section, "service": {}}), 2, 1, 4, None)
    assert env.reset()[0]["states"][:, :3].tolist() == [[2, 0, 0], [3, 0, 0]]
    for place, rollout in ((3, 5), (0, 0), (1, 1)):
        env.take_on(place, rollout)
        shown = env.reset()[0]["states"][:, :3].tolist()
        assert shown == [[2 * place, rollout, 0], [2 * place + 1, rollout, 0]]


def test_environments_that_reset_ahead_begin_where_a_rollout_ends_and_wait_for_what_is_left(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", lambda seconds: slept.append((seconds, threading.current_thread())))
    section = {"auto_reset": False, "ignore_terminations": True, "max_steps_per_rollout_epoch": 4, "seed": 0}
    for ahead in (False, True):
        slept.clear()
        section |= {"service": {"reset_s": 2.0}, "resets_ahead": ahead}
        env = EmulatedEnv(OmegaConf.create(section), 2, 0, 2, None)
        env.reset()
        env.update_reset_state_ids()
        assert env.reset()[0]["states"][:, 1].tolist() == [1, 1]
        beside = [thread is not threading.current_thread() for _, thread in slept]
        assert beside == [False, ahead]


def test_a_vectorised_simulator_takes_as_long_for_one_as_for_many(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    for size in (1, 64):
        batch = EmulatedBatch(EnvService(vectorised_s=0.5, reset_s=2.0), size, first=0, seed=0)
        assert batch.reset() == [2.0] * size
        batch.step()
    assert slept == [2.0, 0.5, 2.0, 0.5]

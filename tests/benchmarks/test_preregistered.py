import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.learning import cells, corrections, gains, pages, verdicts
from benchmarks.learning.preregistered_run import (
    begin,
    block_of,
    policy_of,
    run,
    service_times,
    settings_of,
    success_by_task,
)
from benchmarks.learning.preregistration import OPTIMIZER_STEPS, load, missing
from benchmarks.learning.virtual_host import BatchSeen, ServiceTimes, train
from rlinf_async.config import LEVEL_NAMES
from rlinf_async.config.checked import checked_config

LOCAL = [setting for setting in load().settings if setting.host == "local"]
KEYS = {
    *("task", "algorithm", "setting", "host", "seeds", "margin", "difference", "ci_low", "ci_high"),
    *("equivalent", "mean_lag", "streamed_share"),
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "RESULTS_FOLDER", tmp_path)
    return tmp_path


def store(setting, seed, side, level, *, lag=1.0, streamed=0.95, batches=40):
    """A run that learns from 0.5 to `level` in its first half, and keeps it."""
    success = [*np.linspace(0.5, level, batches // 2), *[level] * (batches - batches // 2)]
    asynchronous = side == "asynchronous"
    run = {
        "run": load().record(setting, side, seed),
        "success": success,
        "success_by_task": [success, [0.5 * value for value in success]],
        "mean_lag": [lag * asynchronous] * batches,
        "streamed_share": [streamed * asynchronous] * batches,
    }
    path = setting.path(side, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run))


def pairs(setting, losses, **had):
    for seed, loss in zip(setting.seeds, losses, strict=False):
        store(setting, seed, "synchronous", 0.8 + 0.01 * seed)
        store(setting, seed, "asynchronous", 0.8 + 0.01 * seed - loss, **had)


def row_of(setting):
    return next(row for row in verdicts.rows(load()) if row.setting == setting)


@pytest.mark.parametrize("setting", LOCAL, ids=lambda setting: setting.name)
def test_a_setting_has_all_levels_on_ten_seeds_and_steps_in_order_of_arrival_but_where_it_says_so(setting):
    task, recipe = load().tasks[setting.task], load().recipes[setting.recipe]
    settings = settings_of(task, recipe, block_of(setting, task), 0)
    streams, spread = setting.streamer.get("enabled", True), setting.streamer.get("steps") == "spread"
    assert settings.asynchrony.levels == {**dict.fromkeys(LEVEL_NAMES, True), "streamer": streams}
    assert settings.run.streams == streams
    assert settings.run.spreads_steps == streams
    assert setting.in_order_of_arrival == (streams and not spread)
    assert settings.run.optimizer_steps == OPTIMIZER_STEPS
    assert settings.plan.shards == task.shards
    assert len(set(setting.seeds)) >= 10


@pytest.mark.parametrize("setting", LOCAL, ids=lambda setting: setting.name)
def test_the_learner_keeps_up_so_that_there_is_something_to_stream_into(setting):
    task, recipe = load().tasks[setting.task], load().recipes[setting.recipe]
    times = service_times(load().service_times, setting, task)
    samples = task.envs * task.horizon
    collecting = times.slowest_decision * task.horizon
    assert times.sample * samples * recipe.update_epoch <= 0.5 * collecting


def test_settings_of_rlinf_have_five_seeds_on_two_tasks_and_both_shardings():
    settings = [one for one in load().settings if one.host == "rlinf" and "policy" not in one.given]
    assert all(len(set(setting.seeds)) >= 5 for setting in settings)
    assert len({setting.task for setting in settings}) >= 2
    assert {setting.given["strategy"] for setting in settings} == {"fsdp", "fsdp2"}
    assert {setting.given["auto_reset"] for setting in settings} == {True, False}


@pytest.mark.parametrize(
    "setting", [one for one in load().settings if one.host == "rlinf"], ids=lambda setting: setting.name
)
def test_a_setting_of_rlinf_is_the_stock_run_against_all_levels_in_four_steps(setting):
    pytest.importorskip("rlinf", reason="RLinf is not installed")
    pytest.importorskip("tensorboard", reason="results are read from its files")
    from benchmarks.learning.on_ray import arguments
    from rlinf_async.compose import compose_config
    from rlinf_async.hosts.rlinf.config import resolve

    settings = {}
    for side in ("synchronous", "asynchronous"):
        _, config, *overrides = arguments(setting, side, 3, Path("runs/somewhere"))
        settings[side] = resolve(
            compose_config(config, overrides), sizes={"env": 1, "rollout": 1, "actor": 1}
        )
    assert not settings["synchronous"].asynchrony.active
    full = settings["asynchronous"]
    assert all(getattr(full.asynchrony, level).enabled for level in LEVEL_NAMES)
    assert full.streams
    assert (full.optimizer_steps, full.plan.shards) == (4, setting.given["shards"])
    assert full.micro_batch_size * full.plan.shards == full.samples_per_batch
    assert full.update_epoch == settings["synchronous"].update_epoch == setting.given["update_epoch"]


def test_pilots_have_other_seeds_than_runs_that_count():
    assert max(seed for setting in load().settings for seed in setting.seeds) < 100


def test_a_delay_of_one_batch_costs_less_than_the_margin(results):
    assert verdicts.one_batch([0.5, 0.7, 0.8]) == pytest.approx((2.0 - 1.7) / 2.0)
    assert verdicts.one_batch([0.0, 0.0]) == 0.0


def test_every_setting_has_a_row_and_nothing_is_said_without_runs(results):
    written = pages.write(load())
    rows = json.loads(written[0].read_text())["rows"]
    assert [row["setting"] for row in rows] == [setting.name for setting in load().settings]
    assert all(row.keys() >= KEYS for row in rows)
    assert {row["equivalent"] for row in rows} == {None}
    assert {row["difference"] for row in rows} == {None}
    assert "not complete, 0 of 10 seeds" in written[1].read_text()


def test_differences_are_shares_of_the_synchronous_mean_and_paired_by_seed(results):
    losses = np.random.default_rng(0).normal(0.01, 0.01, 10)
    pairs(LOCAL[0], losses)
    row = row_of(LOCAL[0])
    mean = np.mean([0.8 + 0.01 * seed for seed in LOCAL[0].seeds])
    low, high = stats.t.interval(0.9, 9, -np.mean(losses) / mean, stats.sem(losses / mean))
    assert row.tests["final"].difference == pytest.approx(-np.mean(losses) / mean)
    assert (row.tests["final"].ci_low, row.tests["final"].ci_high) == pytest.approx((low, high))
    assert row.verdict == "equivalent"
    assert row.as_json(0.05)["equivalent"] is True


def test_equivalence_needs_the_area_and_the_final_success(results):
    # A loss at the end alone weighs three quarters as much in the area.
    pairs(LOCAL[0], [0.046 + 0.0005 * (seed % 2) for seed in range(10)])
    row = row_of(LOCAL[0])
    assert row.tests["area"].verdict == "equivalent"
    assert row.tests["final"].verdict == "worse"
    assert row.verdict == "worse"


def test_seeds_that_disagree_are_undecided(results):
    pairs(LOCAL[0], [0.15 * (-1) ** seed for seed in range(10)])
    assert row_of(LOCAL[0]).verdict == "undecided"
    assert "shows neither a difference nor none" in pages.sentence(load(), row_of(LOCAL[0]))


def test_a_setting_that_lacks_a_seed_has_no_verdict(results):
    pairs(LOCAL[0], [0.0] * 9)
    row = row_of(LOCAL[0]).as_json(0.05)
    assert (row["equivalent"], row["verdict"], row["seeds"]) == (None, "incomplete", list(range(9)))


@pytest.mark.parametrize("had", [{"lag": 0.7}, {"streamed": 0.7}])
def test_a_run_that_hardly_lagged_or_streamed_does_not_count_and_is_listed(results, had):
    pairs(LOCAL[0], [0.0] * 10)
    store(LOCAL[0], 3, "asynchronous", 0.8, **had)
    row = row_of(LOCAL[0])
    assert row.seeds == (0, 1, 2, *range(4, 10))
    assert row.complete
    assert "seed 3: " in pages.write(load())[1].read_text()


def test_a_result_of_other_settings_is_refused(results):
    pairs(LOCAL[0], [0.0])
    path = LOCAL[0].path("asynchronous", 0)
    stored = json.loads(path.read_text())
    stored["run"]["lag"] = 2
    path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="other settings"):
        verdicts.rows(load())


def test_results_of_no_setting_are_listed(results):
    pairs(LOCAL[0], [0.0])
    (results / "preregistered" / "another-seed0.json").write_text("{}")
    assert verdicts.others(load()) == ["another-seed0.json"]
    assert "another-seed0.json" in pages.write(load())[1].read_text()


def test_runs_are_made_once_and_in_the_order_of_the_file(results):
    todo = missing(LOCAL)
    assert todo[:2] == [(LOCAL[0], "synchronous", 0), (LOCAL[0], "asynchronous", 0)]
    pairs(LOCAL[0], [0.0])
    assert missing(LOCAL) == todo[2:]


def test_settings_of_one_task_and_recipe_share_their_synchronous_runs(results):
    one = LOCAL[0]
    shared = next(other for other in LOCAL if other != one and other.synchronous == one.synchronous)
    assert len(missing([one, shared])) == 3 * len(one.seeds)


def test_corrections_are_compared_by_level_1_alone_at_a_fixed_lag():
    wanted = corrections.settings(load())
    assert len({setting.name for setting in wanted}) == len(wanted) == 3 * (4 + 4 + 2)
    for setting in wanted:
        block = block_of(setting, load().tasks[setting.task])
        if setting.correction["correction"] == "mis":  # of which the results of a former version are kept
            with pytest.raises(ValueError, match="mis is gone"):
                checked_config(block)
            continue
        config = checked_config(block)
        assert config.deterministic
        assert config.max_staleness == setting.lag
        assert config.train.correction == setting.correction["correction"]


def test_the_table_of_corrections_pairs_them_with_decoupled_by_seed(results):
    by_name = {setting.name: setting for setting in corrections.settings(load())}
    for seed in range(3):
        store(by_name["correction-lag2-decoupled"], seed, "asynchronous", 0.7 + 0.1 * seed, batches=2)
        store(by_name["correction-lag2-tis-2"], seed, "asynchronous", 0.72 + 0.1 * seed, batches=2)
    text = corrections.write(load()).read_text()
    assert "| 2 | tis-2 | 3 | 0.660 ± 0.050 | +0.010 | [+0.010, +0.010] |" in text
    assert "| 1 | mis-2 | 0 | – | – | – |" in text


def test_a_correction_becomes_the_default_by_both_policies_together(results):
    by_name = {setting.name: setting for setting in corrections.settings(load())}
    better = {"tis-2": {"correction": -0.01, "correction-tokens": 0.04}}
    for name, setting in by_name.items():
        prefix, _, candidate = name.partition(f"-lag{setting.lag}-")
        for seed in range(3) if prefix != "anchor-grpo-4" else ():
            store(setting, seed, "synchronous", 0.8, batches=2)
            more = better.get(candidate, {}).get(prefix, 0.0) + 0.002 * seed * (candidate == "tis-2")
            store(setting, seed, "asynchronous", 0.7 + more, batches=2)
    table = corrections.write(load()).read_text().split("## Corrections")[1].split("## Anchors")[0]
    # Areas are half of what the last batches differ by: (0.020 - 0.005) / 2 + 0.001 a seed, of 0.65.
    assert "| tis-2 | 3 | +1.3% | [+1.0%, +1.6%] | becomes the default |" in table
    assert table.count("becomes the default |") == 1
    assert "| mis-2 | 3 | +0.0% | [+0.0%, +0.0%] | – |" in table


def test_an_anchor_is_judged_over_lags_1_and_2_and_both_recipes(results):
    by_name = {setting.name: setting for setting in corrections.settings(load())}
    for seed in range(3):
        for name, setting in by_name.items():
            if name.endswith("decoupled"):
                store(setting, seed, "synchronous", 0.8, batches=2)
                store(setting, seed, "asynchronous", 0.7 + 0.05 * seed, batches=2)
        for prefix, more in (("correction", 0.02), ("anchor-grpo-4", -0.01)):
            for lag in (1, 2):
                name = f"{prefix}-lag{lag}-loglinear"
                store(by_name[name], seed, "asynchronous", 0.7 + 0.05 * seed + more + 0.002 * seed, batches=2)
    text = corrections.write(load()).read_text()
    # Areas are half of what the last batches differ by: (0.010 - 0.005) / 2 + 0.001 a seed, of 0.65.
    assert "| loglinear | 3 | +0.5% | [+0.3%, +0.8%] | becomes the default |" in text


def test_what_is_published_is_what_the_results_give(tmp_path, monkeypatch):
    published = cells.RESULTS_FOLDER
    raw = published / "preregistered"
    monkeypatch.setattr(cells, "RESULTS_FOLDER", tmp_path)
    if raw.exists():
        (tmp_path / "preregistered").symlink_to(raw)
    for path in pages.write(load()):
        assert path.read_text() == (published / path.name).read_text(), "run `preregistered --report`"
    page = Path("benchmarks/learning/measurements.md").read_text()
    assert gains.page(gains.gains(load())).strip() in page


def test_a_setting_that_changes_one_thing_of_another_is_compared_with_it(results):
    base, variant = (
        next(setting for setting in LOCAL if setting.name == name)
        for name in ("ppo-1-lag1", "ppo-1-lag1-loglinear")
    )
    for setting, losses in ((base, [0.10, 0.12, 0.14]), (variant, [0.10, 0.10, 0.10])):
        pairs(setting, losses)
    page = next(path for path in pages.write(load()) if path.suffix == ".md").read_text()
    # Final: 0, 0.02 and 0.04 of 0.81. Areas have half of that in their first half, where the level rises.
    assert "| ppo-1-lag1-loglinear | ppo-1-lag1 | 3 |" in page
    line = next(
        line for line in page.splitlines() if line.startswith("| ppo-1-lag1-loglinear | ppo-1-lag1 |")
    )
    half = stats.t.ppf(0.95, 2) * np.std([0, 0.02, 0.04], ddof=1) / np.sqrt(3)
    assert line.endswith(f"| {0.02 / 0.81:+.1%} [{(0.02 - half) / 0.81:+.1%}, {(0.02 + half) / 0.81:+.1%}] |")


def test_each_task_of_a_run_is_compared_by_itself(results):
    pairs(LOCAL[0], [0.04] * 3)
    text = pages.write(load())[1].read_text()
    assert f"| {LOCAL[0].name} | 0.06 | second | -0.015 [-0.015, -0.015] | -0.020 [-0.020, -0.020] |" in text


def test_the_page_has_what_is_claimed_and_keeps_its_rest(results):
    pairs(LOCAL[0], [0.001 * (seed % 3) for seed in range(10)])
    pairs(LOCAL[1], [0.15 * (-1) ** seed for seed in range(10)])
    page = results / "page.md"
    page.write_text(f"before\n{pages.BEGIN_MARK}\nold\n{pages.END_MARK}\nafter\n")
    pages.publish(load(), page)
    text = page.read_text()
    assert "something is claimed: a toy, 1 of 2; two tasks of unequal speed, 0 of 0;" in text
    assert f"| {LOCAL[0].name} | a toy | 10 |" in text
    assert LOCAL[1].name not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text


def test_the_success_of_tasks_weighs_the_same_whoever_is_in_the_batch():
    task = load().tasks["points"]
    both, fast = BatchSeen(), BatchSeen()
    both.solved.update({0: [True], 1: [False], 63: [False]})
    fast.solved.update({0: [True], 1: [True]})
    assert success_by_task([both, fast], task) == [[0.5, 1.0], [0.0, 0.0]]


def test_fast_and_slow_shards_are_spread_over_their_range():
    times = ServiceTimes(
        slowest_decision=2.0, speeds=((0.3, 0.5), (0.6, 1.0)), jitter=0, inference=0, sample=0
    )
    decisions = [times.decision(shard, 4) for shard in range(4)]
    assert decisions == pytest.approx([0.6, 1.0, 1.2, 2.0])


def test_a_run_repeats_itself_and_really_lags_and_streams(results, monkeypatch):
    setting = next(one for one in LOCAL if one.name == "ppo-1-lag1-spread")
    stated = load()
    short = {name: replace(recipe, batches=6) for name, recipe in stated.recipes.items()}
    monkeypatch.setattr("benchmarks.learning.preregistered_run.load", lambda: replace(stated, recipes=short))
    stored = []
    for _ in range(2):
        run(setting, "asynchronous", 7)
        stored.append(json.loads(setting.path("asynchronous", 7).read_text()))
        stored[-1].pop("cpu_seconds")
    assert stored[0] == stored[1]
    # The first batches have no older policy and nothing to be normalised by.
    assert np.mean(stored[0]["mean_lag"][2:]) > 0.8
    # Of four optimizer steps the first streams.
    assert np.mean(stored[0]["streamed_share"][2:]) > 0.9 / 4


def test_a_setting_with_steps_in_order_of_arrival_is_kept_and_not_run_again():
    with pytest.raises(ValueError, match="ppo-1-lag1 takes its optimizer steps in order of arrival"):
        run(LOCAL[0], "asynchronous", 7)


def test_every_environment_contributes_equally_and_those_that_take_on_tasks_do_so_sooner():
    shares, seconds = {}, {}
    for balance in ("exact", "tasks"):
        setting, task, recipe = (
            replace(LOCAL[0], balance=balance),
            load().tasks[LOCAL[0].task],
            load().recipes["ppo-1"],
        )
        settings = settings_of(task, replace(recipe, batches=4), block_of(setting, task), 0)
        times = service_times(load().service_times, setting, task)
        environments, weights = begin(task, recipe, 0)
        batches = train(settings, environments, times, weights, policy=policy_of(task)).batches
        fast = sum(len(seen.solved[env]) for seen in batches for env in range(task.envs // 2))
        shares[balance] = fast / sum(len(found) for seen in batches for found in seen.solved.values())
        seconds[balance] = batches[-1].seconds
        assert {len(found) for seen in batches for found in seen.solved.values()} == {1}
    assert shares["exact"] == shares["tasks"] == 0.5
    assert seconds["tasks"] < 0.9 * seconds["exact"]

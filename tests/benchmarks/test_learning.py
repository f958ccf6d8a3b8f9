import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.learning import cells, data, reports, statistics
from benchmarks.learning.cells import Cell, Curve
from benchmarks.learning.statistics import delayed, tost_paired
from rlinf_async.config import AsyncConfig

KEYS = [
    "task",
    "algorithm",
    "host",
    "seeds",
    "sync_mean",
    "full_mean",
    "ci_low",
    "ci_high",
    "margin",
    "equivalent",
]

EXPERIMENTS = {
    "equivalence-local": lambda seeds: data.equivalence("local", seeds),
    "equivalence-rlinf": lambda seeds: data.equivalence("rlinf", seeds),
    "staleness": data.staleness,
}


def curve(success: list[float], *, step: int = 100, seconds: float = 2.0) -> Curve:
    batches = range(1, len(success) + 1)
    return Curve(
        env_steps=[step * batch for batch in batches],
        seconds=[seconds * batch for batch in batches],
        success=success,
        returns=success,
        staleness=[0.5] * len(success),
    )


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "RESULTS_FOLDER", tmp_path)
    monkeypatch.setattr(cells, "RAW_FOLDER", tmp_path / "raw")
    return tmp_path


def store(wanted: list[Cell]) -> None:
    """Runs that learn linearly, a little differently by seed and label."""
    for cell in wanted:
        top = 0.9 + 0.01 * cell.seed + 0.004 * (len(cell.label) % 3) * (cell.seed % 2)
        cells.write(cell, curve(list(np.linspace(0.1, top, cell.batches))), {})


def test_area_is_the_mean_over_batches_of_one_size():
    assert statistics.area_under_curve(curve([0.0, 0.5, 1.0])) == pytest.approx(0.5)


def test_area_weights_batches_by_their_env_steps():
    uneven = replace(curve([0.0, 1.0]), env_steps=[100, 400])
    assert statistics.area_under_curve(uneven) == pytest.approx(0.75)


def test_moving_mean_is_over_what_there_is_at_the_beginning():
    assert statistics.moving_mean([1.0, 0.0, 0.5, 0.5, 1.0], 4) == pytest.approx([1, 0.5, 0.5, 0.5, 0.5])


def test_final_success_is_that_of_the_last_batches():
    assert statistics.final_success(curve([0.0, 0.0, 1.0, 1.0, 1.0, 0.6])) == pytest.approx(0.9)


def test_time_counts_to_the_end_of_the_window_that_reaches_the_level():
    reaching = curve([1.0, 0.0, 0.8, 0.8, 0.8, 0.8, 0.1])
    assert statistics.seconds_to(reaching, 0.8) == 12.0
    assert statistics.env_steps_to(reaching, 0.8) == 600


@pytest.mark.parametrize("success", [[0.79] * 9, [1.0] * 3, []])
def test_a_level_is_never_reached_below_it_or_in_less_than_a_window(success):
    assert statistics.seconds_to(curve(success), 0.8) is None
    assert statistics.env_steps_to(curve(success), 0.8) is None


def test_a_level_can_be_reached_from_the_start():
    assert statistics.seconds_to(curve([0.9] * 4), 0.8) == 8.0
    assert statistics.seconds_to(curve([0.9]), 0.8, window=1) == 2.0


def test_never_is_later_than_everything_in_a_median():
    assert statistics.median([3.0, None, 1.0]) == 3.0
    assert statistics.median([3.0, None]) is None
    assert statistics.median([]) is None


@pytest.mark.parametrize("seed", range(3))
def test_interval_and_p_value_are_scipys(seed):
    generator = np.random.default_rng(seed)
    sync = generator.normal(0.7, 0.05, 6)
    full = sync + generator.normal(0.01, 0.03, 6)
    tost = tost_paired(sync, full, 0.07)
    interval = stats.ttest_rel(full, sync).confidence_interval(0.90)
    assert (tost.ci_low, tost.ci_high) == pytest.approx((interval.low, interval.high))
    sides = [
        stats.ttest_rel(full + 0.07, sync, alternative="greater").pvalue,
        stats.ttest_rel(full - 0.07, sync, alternative="less").pvalue,
    ]
    assert tost.p_value == pytest.approx(max(sides))
    assert tost.equivalent == (tost.p_value < 0.05)


def test_two_pairs_have_the_interval_of_the_closed_form():
    # Student's t with one degree of freedom is Cauchy's: its 95 % quantile is tan(0.45 pi).
    tost = tost_paired([0.0, 0.0], [0.1, 0.3], 1.0)
    half = np.tan(0.45 * np.pi) * 0.1
    assert (tost.difference, tost.ci_low, tost.ci_high) == pytest.approx((0.2, 0.2 - half, 0.2 + half))


def test_equal_curves_with_little_noise_are_equivalent():
    noise = np.random.default_rng(0).normal(0, 0.01, (2, 5))
    tost = tost_paired(0.7 + noise[0], 0.7 + noise[1], 0.07)
    assert tost.equivalent
    assert tost.verdict == "equivalent"


@pytest.mark.parametrize(("shift", "verdict"), [(-0.15, "worse"), (0.15, "better")])
def test_a_shift_beyond_the_margin_is_not_equivalent(shift, verdict):
    sync = np.array([0.70, 0.72, 0.68, 0.71, 0.69])
    noise = np.array([0.01, -0.01, 0.0, 0.005, -0.005])
    tost = tost_paired(sync, sync + shift + noise, 0.07)
    assert not tost.equivalent
    assert tost.verdict == verdict


def test_few_scattered_pairs_are_undecided_however_close_their_means():
    tost = tost_paired([0.6, 0.8], [0.8, 0.6], 0.07)
    assert tost.difference == pytest.approx(0)
    assert tost.verdict == "undecided"
    assert not tost.equivalent


def test_one_pair_has_no_interval():
    tost = tost_paired([0.7], [0.7], 0.07)
    assert (tost.ci_low, tost.ci_high, tost.p_value) == (None, None, None)
    assert not tost.equivalent


def test_differences_without_spread_are_decided_by_their_mean():
    assert tost_paired([0.5, 0.75], [0.5, 0.75], 0.07).equivalent
    assert tost_paired([0.5, 0.75], [0.75, 1.0], 0.07).verdict == "better"


@pytest.mark.parametrize(("sync", "full"), [([], []), ([0.5], [0.5, 0.6])])
def test_what_are_no_pairs_is_refused(sync, full):
    with pytest.raises(ValueError, match="not pairs"):
        tost_paired(sync, full, 0.07)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_runs_of_an_experiment_have_names_of_their_own_and_valid_settings(name):
    wanted = EXPERIMENTS[name](3)
    assert len({cell.name for cell in wanted}) == len(wanted)
    for cell in wanted:
        AsyncConfig.from_mapping(cell.asynchrony)
        assert Cell(**json.loads(json.dumps(vars(cell)))) == cell  # as its result names it


def test_a_lag_is_fixed_and_its_correction_is_in_force():
    lagged = [cell for cell in data.staleness(1) if cell.label != "off"]
    assert len(lagged) == (len(data.STALENESS_LAGS) - 1) * len(data.CORRECTION_NAMES)
    for cell in lagged:
        config = AsyncConfig.from_mapping(cell.asynchrony)
        assert config.deterministic
        assert cell.label == f"lag{config.max_staleness}-{config.correction}"


def test_a_written_run_is_read_back(results):
    cell = data.staleness(1)[0]
    cells.write(cell, curve([0.25, 0.5]), {"trajectories": "some"})
    (cell.path.parent / "unfinished.draft").write_text("{")
    assert data.load().runs == ((cell, curve([0.25, 0.5])),)
    assert cells.read(cell) == curve([0.25, 0.5])


def test_the_json_has_exactly_the_agreed_keys_and_a_row_for_each_setting_and_host(results):
    store(data.equivalence("local", 3) + data.equivalence("rlinf", 2))
    reports.equivalence(data.load())
    rows = json.loads((results / "equivalence.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    assert len({(row["task"], row["algorithm"], row["host"]) for row in rows}) == 12
    assert {row["host"]: row["seeds"] for row in rows} == {"local": 3, "rlinf": 2, "both": 3}
    for row in rows:
        assert row["margin"] == pytest.approx(0.1 * row["sync_mean"], abs=1e-5)
        assert row["equivalent"] is True
        difference = row["full_mean"] - row["sync_mean"]
        assert (row["ci_low"] + row["ci_high"]) / 2 == pytest.approx(difference, abs=1e-5)


def test_only_pairs_count_and_one_has_no_interval_in_the_json(results):
    first = data.equivalence("local", 1)[:2]
    unpaired = [cell for cell in data.equivalence("local", 2) if cell.seed == 1][:1]
    store(first + unpaired)
    reports.equivalence(data.load())
    (row,) = json.loads((results / "equivalence.json").read_text())
    assert (row["seeds"], row["ci_low"], row["ci_high"], row["equivalent"]) == (1, None, None, False)
    text = (results / "equivalence.md").read_text()
    assert "too few pairs" in text
    assert "local-ppo-button-press-topdown-v3-30-full-seed1" in text  # said to be missing


@pytest.mark.parametrize("name", reports.REPORT_BY_NAME)
def test_reports_say_that_there_is_nothing_yet(name, results):
    written = reports.REPORT_BY_NAME[name](data.load())
    assert "No results yet." in written[-1].read_text()
    assert ".png" not in written[-1].read_text()


def test_missing_counts_up_to_the_highest_seed(results):
    store([cell for cell in data.staleness(2) if (cell.seed, cell.label) != (0, "lag8-tis")][:-1])
    gaps = data.missing(data.staleness, data.load())
    assert [name.rpartition("30-")[2] for name in gaps] == ["lag8-tis-seed0", "lag8-tis-seed1"]
    store(data.equivalence("local", 3))
    assert data.missing(EXPERIMENTS["equivalence-local"], data.load()) == []


def test_the_staleness_table_has_the_worst_seed_and_the_spread(results):
    lagged = [cell for cell in data.staleness(2) if cell.label in ("off", "lag4-tis")]
    for cell in lagged:
        cells.write(cell, curve([0.5 + 0.1 * cell.seed - 0.2 * (cell.label != "off")] * data.BATCH_COUNT), {})
    (path,) = reports.staleness(data.load())
    assert (
        "| 4 | tis | 2 | 0.350 ± 0.071 | -0.200 | [-0.200, -0.200] | +0.000 | 35% | 30% | 0.50 |"
        in path.read_text()
    )


def test_pictures_are_small_repeat_themselves_and_go_with_their_data(results):
    plots = pytest.importorskip("benchmarks.learning.plots")
    store(data.equivalence("local", 2) + data.equivalence("rlinf", 1) + data.staleness(2)[:-4])
    drawn = [plot(data.load()) for plot in plots.PLOT_BY_NAME.values()]
    before = [path.read_bytes() for path in drawn]
    assert max(map(len, before)) < 150_000
    assert [plot(data.load()).read_bytes() for plot in plots.PLOT_BY_NAME.values()] == before
    assert [plot(data.Results(())) for plot in plots.PLOT_BY_NAME.values()] == [None] * 2
    assert not list(results.glob("*.png"))


def test_a_delayed_curve_learns_the_same_things_later():
    early = curve([0.1, 0.5, 0.7, 0.9])
    assert delayed(early, 0).success == early.success
    assert delayed(early, 2).success == [0.1, 0.1, 0.1, 0.5]
    assert delayed(early, 9).success == [0.1] * 4

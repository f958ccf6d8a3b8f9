"""What the three ways to train pi0.5 come to, from runs that are made up."""

import pytest

from benchmarks.gpu import pi05
from benchmarks.gpu.pi05 import ROWS_FILE, TRAINING_WAYS, Sizes, by_turns, page


def made_up(way, seconds, **other):
    row = {
        "way": way,
        "sizes": vars(Sizes()),
        "device": "a GPU",
        "peak_gib": 30.0,
        "step_s": [100.0, *seconds],
        "rollout_s": [],
        "learner_s": [],
        "busy": {"env": [], "inference": [], "learner": []},
    }
    return row | other


def cells_of(text, way):
    (line,) = (line for line in text.splitlines() if line.startswith(f"| `{way}` "))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_a_page_has_the_seconds_after_the_first_step_and_the_ratio_of_medians():
    rows = [
        made_up("off", [10.0, 14.0], rollout_s=[50.0, 6.0, 6.0], learner_s=[9.0, 3.0, 3.0], peak_gib=36.9),
        made_up("off", [12.0, 12.0], rollout_s=[50.0, 6.0, 6.0], learner_s=[9.0, 3.0, 3.0]),
        made_up("full", [5.0, 7.0], busy={"env": [0.1, 0.5, 0.7], "inference": [0.1], "learner": [0, 1, 1]}),
        made_up("full", [4.0, 4.0]),
    ]
    assert cells_of(page(rows), "off")[1:] == [
        "2",
        "12.00 [12.00, 12.00]",
        "1.00",
        "36.9 GiB",
        "rollout 50%, learner 25%",
    ]
    assert cells_of(page(rows), "full")[1:4] == ["2", "5.00 [4.00, 6.00]", "2.40"]
    assert cells_of(page(rows), "full")[5] == "env 60%, learner 100%"


def test_runs_of_other_sizes_or_another_device_are_not_mixed_in():
    rows = [made_up("off", [10.0], device="another"), made_up("off", [12.0]), made_up("full", [6.0])]
    assert cells_of(page(rows), "off")[1:3] == ["1", "12.00 [12.00, 12.00]"]
    assert "async-ppo" not in page(rows)


def test_ways_take_turns_while_the_slowest_would_still_end_in_time():
    now, made = [0.0], []
    seconds = {"off": 60.0, "async-ppo": 50.0, "full": 40.0}

    def once(way):
        made.append(way.name)
        now[0] += seconds[way.name]

    assert by_turns(TRAINING_WAYS, 6.0, once, lambda: now[0]) == 6
    # 300 of 360 seconds, of which 20 are spare: another 60 would be too late.
    assert made == ["off", "async-ppo", "full"] * 2


def test_a_call_without_time_makes_one_run():
    assert by_turns(TRAINING_WAYS, 0.1, lambda way: None, iter(range(10)).__next__) == 1


@pytest.mark.parametrize("way", TRAINING_WAYS, ids=lambda way: way.name)
def test_every_way_is_accepted_by_rlinfs_config(way, tmp_path):
    pytest.importorskip("rlinf", reason="RLinf is not installed")
    from rlinf_async.compose import compose_config
    from tests.checkouts import EMBODIED, configs

    embodied = configs("rlinf-v0.3") / EMBODIED
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBODIED_PATH", str(embodied))
        cfg = compose_config(
            pi05.CONFIG_NAME, [*Sizes().overrides, *way.overrides], directory=embodied / "config"
        )
    assert cfg.env.train.total_num_envs * pi05.CHUNK_ACTIONS * Sizes().decisions == 480
    assert cfg.actor.global_batch_size == 96


@pytest.mark.skipif(not ROWS_FILE.exists(), reason="no run on a GPU has been kept")
def test_the_page_is_that_of_the_stored_runs():
    import json

    rows = [json.loads(line) for line in ROWS_FILE.read_text().splitlines()]
    assert pi05.PAGE_FILE.read_text() == page(rows)

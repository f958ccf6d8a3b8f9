"""Growth of processes that are killed and started anew, from samples that are written by hand."""

import pytest

from benchmarks.long_runs.held import START_UP_S, TOGETHER, Look, growth, steepest


def looks(memory_at):
    """Samples of ten minutes, every 5 s; `memory_at(seconds)` returns the memory by process."""
    return [
        Look(seconds=seconds, memory=memory_at(seconds), descriptors={}, shared={})
        for seconds in map(float, range(0, 601, 5))
    ]


def test_a_successor_that_builds_its_models_in_its_first_minute_does_not_grow():
    def memory(seconds):
        name = "env 1" if seconds < 400 else "env 2"
        age = seconds if seconds < 400 else seconds - 400
        return {"driver 0": 100.0, name: 50 + min(age, START_UP_S) * 10}

    found = growth(looks(memory), "memory")
    assert found == {"driver 0": 0.0, "env 1": 0.0, "env 2": 0.0, TOGETHER: 0.0}


def test_a_successor_that_grows_behind_its_start_is_seen():
    def memory(seconds):
        return {"driver 0": 100.0} | ({"env 2": 100 + (seconds - 300) / 6} if seconds >= 300 else {})

    found = growth(looks(memory), "memory")
    assert found["env 2"] == pytest.approx(10 / 130, rel=0.02)  # 10 MB a minute on a mean of 130
    assert steepest(found, "memory")[0] == "env 2"


def test_a_process_of_the_first_sample_is_judged_from_the_time_when_the_run_has_settled():
    found = growth(looks(lambda seconds: {"driver 0": 100 + min(seconds, 240) * 10}), "memory")
    assert found == {"driver 0": 0.0, TOGETHER: 0.0}


def test_the_sum_is_of_those_that_live_throughout_and_small_growth_of_each_adds_up():
    def memory(seconds):
        return {"driver 0": 100 + seconds / 60, "learner 1": 100 + seconds / 60} | (
            {"env 2": 500.0} if seconds % 100 < 50 else {}
        )

    found = growth(looks(memory), "memory")
    assert found[TOGETHER] == pytest.approx(2 / 214, rel=0.02)


def test_a_process_that_was_killed_soon_behind_its_start_has_no_growth():
    found = growth(looks(lambda s: {"driver 0": 1.0} | ({"env 2": s} if 300 <= s < 400 else {})), "memory")
    assert set(found) == {"driver 0", TOGETHER}


@pytest.mark.parametrize(("lost", "share"), [(2, 0.0), (6, 1.0)])
def test_the_connections_of_one_peer_that_comes_back_are_no_growth_and_those_of_three_are(lost, share):
    """The peers come back one after the other in the middle of what is looked at."""
    seen = [
        Look(
            seconds=seconds,
            memory={},
            descriptors={"rank 1": 60.0 - lost * (1 - min(1.0, max(0.0, (seconds - 240) / 360)))},
            shared={},
        )
        for seconds in map(float, range(0, 601, 5))
    ]
    assert growth(seen, "descriptors")["rank 1"] == pytest.approx(share * lost / 6 / 57, rel=0.03)


def test_descriptors_of_rays_log_monitor_are_measured_and_not_judged():
    shares = {"log_monitor.py 7": 0.08, "driver 0": 0.002}
    assert steepest(shares, "descriptors") == ("driver 0", 0.002)
    assert steepest(shares, "memory") == ("log_monitor.py 7", 0.08)
    assert steepest({}, "memory") == ("no process was seen for long enough", 0.0)


@pytest.mark.parametrize(("kept", "share"), [(0.0, 0.0), (0.2, 0.2 * 12 / 7.5)])
def test_files_that_each_batch_takes_and_gives_back_do_not_grow_and_one_that_is_kept_of_five_batches_does(
    kept, share
):
    """Up to 9 files come and go, more of them later, so that a line through all samples rises either way."""
    taken = {5: [3, 9, 0, 6, 1], 6: [9, 9, 0, 9, 9]}  # of five samples: the later batches take more

    def shared(seconds):
        batch = int(seconds // 5)
        return {"learner 1": taken[5 if seconds < 420 else 6][batch % 5] + kept * (batch - 48)}

    seen = [
        Look(seconds=seconds, memory={}, descriptors={}, shared=shared(seconds))
        for seconds in map(float, range(0, 601, 5))
    ]
    assert growth(seen, "shared")["learner 1"] == pytest.approx(share, rel=0.1)

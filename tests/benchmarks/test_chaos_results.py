"""The chaos bench beside its main command: what is said of runs, and the small parts that look at them."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.chaos import driver, effective, faulty, learning, places, saving, soak, watch
from benchmarks.result_store import ResultStore
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import written_aside


def test_results_are_kept_as_they_come(tmp_path):
    path = tmp_path / "results.json"
    ResultStore(path).add("one", {"a": [1, 2]})
    ResultStore(path).add("two", 2)
    ResultStore(path).add("one", 3)
    assert ResultStore(path).results == {"one": 3, "two": 2}
    assert len(path.read_text().splitlines()) == 4


def curves(shift, **facts):
    found = {}
    for seed in range(learning.SEED_COUNT):
        for side, top in ((learning.UNDISTURBED_SIDE, 0.9), ("killed every 5 steps", 0.9 + shift)):
            success = list(np.linspace(0.1, top + 0.002 * seed, 30) + 0.001 * (seed % 2))
            one = {
                "success": success,
                "unaccounted": 0,
                "staleness": 1,
                "bound": 1,
                "killed": 5,
                "restarts": 5,
            }
            found[learning.name_of(side, seed)] = one | facts
    return found


def test_what_is_learned_passes_when_all_pairs_are_there_and_the_same():
    results = curves(0.01)
    assert learning.passed(results, "killed every 5 steps")
    line = learning.table(results).splitlines()[-1]
    assert line.startswith("| killed every 5 steps | 5 | 25 | 25 | 0 | ")
    assert line.endswith("| yes |")
    del results[learning.name_of(learning.UNDISTURBED_SIDE, 4)]
    assert not learning.passed(results, "killed every 5 steps")


@pytest.mark.parametrize(("shift", "facts"), [(-0.2, {}), (0.0, {"unaccounted": 1}), (0.0, {"staleness": 2})])
def test_what_is_learned_does_not_pass(shift, facts):
    assert not learning.passed(curves(shift, **facts), "killed every 5 steps")


def samples(growth=0.0, files=lambda step: 9, other=0):
    return [
        watch.Sample(
            step=step,
            seconds=float(step),
            memory={"driver 1": 400.0, "env 2": 200.0 * (1 + growth * step / 1000)}
            | ({"old 3": 1.0} if step < 5 else {}),
            files={"driver 1": 4, "env 2": files(step) - 4},
            metrics=800 * step,
            trace=100 * step,
            other=1000 + other * step,
        )
        for step in range(0, 1000, 10)
    ]


def test_a_flat_run_passes():
    found = soak.verdict(0, samples(growth=0.02), 1000)
    assert (found.passed, found.grown, found.files, found.metrics_bytes) == (True, "env", (9, 9), 800)
    assert soak.verdict(0, samples(files=lambda step: 9 + step // 100), 1000).files_grown == "env +8"
    assert found.growth == pytest.approx(0.016, abs=0.001)


@pytest.mark.parametrize(
    "seen",
    [
        samples(growth=0.2),
        samples(files=lambda step: 9 + step // 100),
        samples(other=10_000),
        [replace(one, metrics=one.metrics * 10) for one in samples()],
        [
            replace(one, memory={**one.memory, **({"new 4": 1.0} if one.step > 500 else {})})
            for one in samples()
        ],
    ],
    ids=["memory", "files", "disk", "metrics", "processes"],
)
def test_a_run_that_grows_does_not_pass(seen):
    assert not soak.verdict(0, seen, 1000).passed


def test_a_run_that_fails_does_not_pass_and_one_that_was_not_seen_is_an_error():
    assert not soak.verdict(1, samples(), 1000).passed
    with pytest.raises(ValueError, match="3 looks at 1000 steps are too few"):
        soak.verdict(0, samples()[:3], 1000)


def test_a_look_sees_every_process_and_what_the_run_directory_holds(tmp_path):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "spans.jsonl").write_text("12345")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / "run.json").write_text("{}")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        seen = watch.Watch(os.getpid(), tmp_path).look()
    finally:
        child.communicate(b"\n")
    assert set(seen.memory) >= {str(os.getpid()), str(child.pid)}
    assert (seen.step, seen.metrics, seen.trace, seen.other) == (2, 24, 5, 2)
    assert seen.files[str(os.getpid())] > 3


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("/usr/bin/python\0-m\0rlinf_async.cli\0", "rlinf_async.cli"),
        ("/usr/bin/python3\0-u\0/opt/ray/_private/log_monitor.py\0--ip=1\0", "log_monitor.py"),
        ("/usr/bin/python3\0-c\0from multiprocessing.spawn import spawn_main\0", "python3"),
        ("ray::CoordinatorWorker.admit\0\0", "ray::CoordinatorWorker"),
        ("/opt/ray/core/gcs_server\0--log_dir=/tmp\0", "gcs_server"),
    ],
)
def test_a_process_is_named_by_its_command_without_what_changes(command, title):
    assert watch.title_of(command) == title


def test_faults_are_counted_where_they_are_injected_and_in_the_books():
    found = faulty.run({"survive": {"env_restarts": 1000}, "advanced": {"window_s": 0.001}}, batches=3)
    assert found["injected"]["env failed"] > 0
    assert found["refused"] == found["faults"] == found["injected"]
    assert (found["trained"], found["in_flight"], found["finite"]) == (3 * faulty.SHARD_COUNT, 0, True)
    assert not faulty.passed("restarts to spare", found)  # which has more batches


def test_without_restarts_the_first_error_ends_the_run():
    found = faulty.run({"survive": {"env_restarts": 0}})
    assert faulty.passed("no restarts", found)
    assert not faulty.passed("the default budget", found)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(saving, "NUMBERS_PER_FILE", 50)


@pytest.mark.usefixtures("small")
def test_a_checkpoint_loads_if_all_of_it_is_of_its_step(tmp_path):
    folder = tmp_path / "global_step_3"
    with written_aside(folder, {}) as aside:
        saving.write(aside, 3)
    assert saving.loads(folder)
    assert not saving.loads(folder.rename(tmp_path / "global_step_4"))


def death(**facts):
    return {
        "left": [],
        "left_after_tidying": [],
        "said": 2,
        "newest": 2,
        "loads": True,
        "broken": 0,
        "named": 0,
    } | facts


@pytest.mark.parametrize(
    "facts",
    [{"newest": 1}, {"loads": False}, {"broken": 1}, {"left_after_tidying": ["writing"]}, {"said": 3}],
)
def test_a_death_that_loses_something_is_found(facts):
    assert saving.summary([death(), death()])["passed"]
    found = saving.summary([death(), death(**facts)])
    assert (found["good"], found["passed"]) == (1, False)


@pytest.mark.usefixtures("small")
def test_a_directory_that_vanishes_while_it_is_written_is_an_error_and_the_next_one_is_written(tmp_path):
    found = places.checkpoint(tmp_path, lambda: shutil.rmtree(tmp_path / "checkpoints"), lambda: None)
    assert "No such file or directory" in found["said"]
    assert found["passed"]


def test_a_driver_that_was_killed_has_gone_on_from_the_newest_checkpoint(tmp_path):
    line = {"async/step_seconds": 2.0, "async/env_steps": 1, "async/staleness/max": 1}
    steps = [1, 2, 3, 3, 4, 5, 5, 6]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": s, **line}) + "\n" for s in steps))
    books = {"produced": 6, "trained": 6, "in_flight": 0, "refused": {}}
    (tmp_path / "summary.json").write_text(json.dumps({"trajectories": books}))
    assert driver.steps_of(tmp_path) == steps
    deaths = [
        {"who": "driver", "trained": 3, "newest": 2},
        {"who": "learner rank 0", "trained": 5, "newest": 4},
    ]
    found = driver.result(tmp_path, 0, deaths, [2, 4], 60.0, 6)
    assert (found["repeated"], found["training_share"], found["passed"]) == ([1, 1], 0.2, True)
    assert not driver.result(tmp_path, 0, deaths, [2, 2], 60.0, 6)["passed"]
    spare = driver.result(tmp_path, 0, deaths, [2, 2, 4], 60.0, 6)
    assert (spare["failed_by_themselves"], spare["passed"]) == (1, True)
    assert not driver.result(tmp_path, 1, deaths, [2, 4], 60.0, 6)["passed"]
    assert not driver.result(tmp_path, 0, deaths, [2, 4], 60.0, 7)["passed"]


def test_the_sentences_of_a_restart_are_understood():
    said = (
        "restart 1 of 3 from step 4, in 1 s: a\nrestart 2 of 3 from the beginning, as there is no checkpoint"
    )
    assert [int(found or 0) for found in driver.RESTART_LINE.findall(said)] == [4, 0]


def test_time_counts_in_which_something_new_is_trained_and_no_more_than_a_usual_step():
    before = [(1, 9.0), (2, 2.0), (3, 2.0)]
    after = [(3, 7.0), (4, 2.0), (5, 2.0), (5, 8.0), (6, 2.0), (7, 30.0)]
    assert effective.effective_seconds(before, after) == 2.0 + 2.0 + 2.0 + 2.0


def test_as_steps_took_only_those_beyond_two_medians_are_cut():
    before, after = [(1, 9.0), (2, 2.0), (3, 2.0)], [(4, 3.5), (5, 2.0), (6, 30.0)]
    assert effective.effective_seconds(before, after, longest=2.0) == 3.5 + 2.0 + 2.75


def test_effective_time_passes_from_four_fifths_on_and_if_nothing_is_lost(tmp_path):
    folder = tmp_path / "checkpoints" / "global_step_9"
    with written_aside(folder, {}) as aside:
        (aside / "async_state.json").write_text(json.dumps({"refused": {"stale": 1}}))
    before, after = [(1, 2.0)], [(1, 2.0), *((step, 2.0) for step in range(2, 10))]
    found = effective.result(tmp_path, 143, 1, 20.0, before, after)
    assert (found["steps"], found["repeated"], found["effective"], found["passed"]) == (9, 1, 0.8, True)
    assert not effective.result(tmp_path, 143, 1, 21.0, before, after)["passed"]
    uneven = [(1, 2.0), *((step, 2.5 if step % 2 else 2.0) for step in range(2, 10))]
    assert effective.result(tmp_path, 143, 1, 22.0, before, uneven)["passed"]
    assert not effective.result(tmp_path, 1, 1, 20.0, before, after)["passed"]
    with written_aside(folder, {}) as aside:
        (aside / "async_state.json").write_text(json.dumps({"refused": {"lost at resume": 8}}))
    assert not effective.result(tmp_path, 143, 1, 20.0, before, after)["passed"]

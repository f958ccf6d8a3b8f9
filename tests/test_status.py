"""A run from outside: what it says of itself, and the stacks of its processes."""

import json
import subprocess
import sys

import pytest

from rlinf_async.status import stacks_of, status_of

SAID = {
    "time": 1000.0,
    "driver": 4711,
    "step": 3,
    "total": 9,
    "still_s": 0.2,
    "processes": {
        "env worker 0": {"pid": 1, "ended": 5, "open": [{"kind": "step", "seconds": 4.0, "shard": 2}]},
        "learner rank 0": None,
    },
}


def said(run, **changes):
    run.mkdir(exist_ok=True)
    (run / "status.json").write_text(json.dumps(SAID | changes))
    return run


def test_a_run_that_moves_says_what_every_process_does(tmp_path):
    assert status_of(said(tmp_path), now=1002.0) == [
        "step 3 of 9; it moves (seen 2.0 s ago)",
        "  env worker 0: shard 2 stepping for 4.0 s",
        "  learner rank 0: does not answer",
    ]


def test_a_stalled_run_says_for_how_long_and_a_dead_driver_that_it_is_silent(tmp_path):
    assert "nothing has ended for 63 s" in status_of(said(tmp_path, still_s=63.0), now=1001.0)[0]
    assert "has died or hangs" in status_of(said(tmp_path), now=1100.0)[0]


def test_a_run_that_has_ended_says_so(tmp_path):
    said(tmp_path)
    ended = {"steps": 9, "seconds": 80.0, "trajectories": {"trained": 4, "produced": 4}}
    (tmp_path / "summary.json").write_text(json.dumps(ended))
    assert status_of(tmp_path) == ["The run has ended: 9 steps in 80 s, 4 of 4 trajectories trained."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, None, "is no directory"),
        ("other.txt", "", "no run directory"),
        ("run.json", "{}", "only just started"),
        ("status.json", '{"time": 1', "no run directory"),
        ("status.json", "[]", "no run directory"),
    ],
)
def test_a_directory_that_says_nothing_is_refused_with_a_reason(tmp_path, name, content, message):
    run = tmp_path / "run"
    if name is not None:
        run.mkdir()
        (run / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        status_of(run)


OBSERVED = """
import sys, threading
from pathlib import Path
from rlinf_async.hosts.rlinf.observed import leave_stacks

def waiting_for_godot():
    print("ready", flush=True)
    threading.Event().wait()

file = leave_stacks(Path(sys.argv[1]), "env worker 0")
waiting_for_godot()
"""


def test_a_process_of_the_run_shows_its_stacks_and_goes_on(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", OBSERVED, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            ((name, stack),) = stacks_of(tmp_path)
            assert name == "env worker 0"
            assert stack.count("waiting_for_godot") == 1
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_has_got_the_number_of_one_of_the_run_is_left_alone(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "stacks").mkdir()
        (tmp_path / "stacks" / f"env-worker-0-{bystander.pid}.txt").write_text("")
        assert list(stacks_of(tmp_path)) == []
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n")
    assert bystander.returncode == 0

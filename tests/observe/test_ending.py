"""Whatever ends a run is one sentence, one line of its faults and the sum of its steps."""

import errno
import json
import os
import signal
import subprocess
import sys
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import EnvironmentsFailed, PolicyFailure, StuckThread, Terminated
from rlinf_async.observe.ending import RunFailed, as_exit, ending_of, recorded, recorded_ending, undisturbed
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.state import RunState

FULL = OSError(errno.ENOSPC, "No space left on device", "/run/events")
RAISED = (RunFailed, KeyboardInterrupt, Terminated)
LEDGER = Ledger(produced=7, trained=4)


def state_with(ledger):
    state = RunState()
    state.ledger = ledger
    return state


def ended_by(error, run_dir):
    """What comes out of a run that `error` ends, and the summary that it leaves."""
    with (
        pytest.raises(RAISED) as caught,
        recorded(lambda: run_dir, state=lambda: state_with(LEDGER)),
    ):
        raise error
    return caught.value, json.loads((run_dir / "summary.json").read_text())


@pytest.mark.parametrize(
    ("error", "how", "status", "words"),
    [
        (ValueError("the policy has no head"), "failed", 1, ("ValueError: the policy has no head",)),
        (FULL, "failed", 1, ("No space left on device at /run/events", "make room there")),
        (PolicyFailure("the policy has failed"), "failed", 1, ("cannot go on: the policy has failed; fix",)),
        (StuckThread("they hang in f\nframes"), "failed", 1, ("cannot go on: they hang in f; fix that",)),
        (
            EnvironmentsFailed("shard 1 has failed", kind="MemoryError"),
            "failed",
            1,
            ("no memory left: shard 1 has failed; use fewer environments",),
        ),
        (MemoryError(), "failed", 1, ("no memory left", "smaller batches")),
        (SystemExit(-1), "failed", 1, ("SystemExit(-1)",)),
        (SystemExit(0), "failed", 1, ("SystemExit(0)",)),
        (RuntimeError(), "failed", 1, ("RuntimeError",)),
        (ExceptionGroup("loops", [OSError("a"), OSError("b")]), "failed", 1, ("loops (2 sub-exceptions)",)),
        (KeyboardInterrupt(), "interrupted", 130, ("was interrupted",)),
        (Terminated(signal.SIGTERM), "terminated", 143, ("SIGTERM",)),
        (Terminated(signal.SIGHUP), "terminated", 129, ("SIGHUP",)),
        (Terminated(signal.SIGUSR1), "terminated", 138, ("SIGUSR1",)),
    ],
)
def test_every_ending_leaves_the_sum_the_ledger_and_one_line(tmp_path, error, how, status, words):
    raised, summary = ended_by(error, tmp_path)
    ending = recorded_ending(raised)
    assert (ending.how, ending.status) == (how, status)
    assert isinstance(raised, RunFailed if how == "failed" else type(error))
    assert all(word in str(ending) for word in words)
    assert (summary["ended"], summary["ending"]) == (how, str(ending))
    assert summary["trajectories"] == {"produced": 7, "trained": 4, "in_flight": 3, "refused": {}}
    (fault,) = read_faults(tmp_path)
    assert fault.what == {"failed": "run failed"}.get(how, how)
    assert fault.error in str(ending)
    assert (tmp_path / "traceback.txt").exists() == (how == "failed")


def test_a_failure_is_a_sentence_that_names_the_file_with_the_frames(tmp_path):
    def deep():
        raise ArithmeticError("diverged")

    try:
        deep()
    except ArithmeticError as error:
        raised, _ = ended_by(error, tmp_path)
    trace = tmp_path / "traceback.txt"
    assert str(trace) in str(raised)
    assert "\n" not in str(raised)
    assert "in deep" in trace.read_text()
    assert raised.__suppress_context__ or raised.__context__ is None  # no other frames are shown with it


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), Terminated(signal.SIGTERM)])
def test_what_is_recorded_further_in_is_recorded_once(tmp_path, error):
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    with pytest.raises(RAISED), recorded(lambda: outer), recorded(lambda: inner):
        raise error
    assert len(read_faults(inner)) == 1
    assert not outer.exists()


def test_an_interrupt_that_becomes_an_exit_stays_recorded(tmp_path):
    raised, _ = ended_by(KeyboardInterrupt(), tmp_path)
    left = as_exit(raised)
    assert left.code == 130
    assert recorded_ending(left) == recorded_ending(raised)


def test_a_run_that_ends_well_is_left_alone(tmp_path):
    with recorded(lambda: tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_frames_are_private_and_go_through_no_link(tmp_path):
    run_dir, precious = tmp_path / "run", tmp_path / "precious"
    ended_by(ValueError("bad"), run_dir)
    trace = run_dir / "traceback.txt"
    assert (run_dir.stat().st_mode & 0o777, trace.stat().st_mode & 0o777) == (0o700, 0o600)
    precious.write_text("kept")
    trace.unlink()
    trace.symlink_to(precious)
    with pytest.warns(UserWarning, match=r"traceback\.txt cannot be written"):
        raised, _ = ended_by(ValueError("bad"), run_dir)
    assert precious.read_text() == "kept"
    assert "frames" not in str(raised)


def test_a_full_disk_does_not_hide_the_fault(tmp_path):
    (tmp_path / "run").write_text("a file where the directory was to be")
    with (
        pytest.warns(UserWarning, match="cannot be written|not in the record"),
        pytest.raises(RunFailed, match="diverged") as caught,
        recorded(lambda: tmp_path / "run"),
    ):
        raise ArithmeticError("diverged")
    assert "frames" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (RuntimeError("can't start new thread"), "raise the limit of processes and threads (ulimit -u,"),
        (OSError(errno.EMFILE, "Too many open files"), "raise the limit of open files, which is "),
    ],
)
def test_a_limit_of_the_system_is_named_with_what_raises_it(error, remedy):
    assert remedy in str(ending_of(error))


def test_a_full_disk_is_to_blame_for_what_came_of_it():
    error = RuntimeError("the writer has died")
    error.__context__ = FULL
    assert "No space left on device at /run/events" in str(ending_of(error))


def test_secrets_are_in_no_record(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    ended_by(ValueError("401 for key 0123456789abcdef0123"), tmp_path)
    for file in tmp_path.iterdir():
        assert "0123456789abcdef0123" not in file.read_text()


@given(st.text(max_size=3000))
def test_the_sentence_is_one_line_of_bounded_length(message):
    sentence = str(ending_of(ValueError(message)))
    assert len(sentence.splitlines()) == 1
    assert len(sentence) < 700


def test_nothing_disturbs_the_end():
    before = signal.getsignal(signal.SIGUSR1)
    with undisturbed():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGUSR1) is before


WITHOUT_MEMORY = """
import resource, sys
from pathlib import Path
from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.ending import recorded
from rlinf_async.observe.state import RunState

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
hoard = []

def keep_all():
    for size in (1 << 20, 1 << 16, 1 << 12, 1 << 9, 400, 300, 200, 100, 50, 20, 5):
        try:
            while True:
                hoard.append(bytearray(size))
        except MemoryError:
            pass
    hoard.append(bytearray(1 << 20))

state = RunState()
state.ledger = Ledger(produced=7, trained=4)
with recorded(lambda: Path(sys.argv[1]), state=lambda: state):
    keep_all()
"""


def test_a_run_without_any_memory_left_has_one_record_its_sum_and_one_sentence(tmp_path):
    (tmp_path / "failures.jsonl").write_text("{}\n" * 100_000)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY, str(tmp_path)], capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "RunFailed: the driver" in last
    assert "has no memory left; use fewer environments or smaller batches" in last
    (fault,) = read_faults(tmp_path)
    assert fault.what == "run failed"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ended"] == "failed"
    assert summary["trajectories"] == {"produced": 7, "trained": 4, "in_flight": 3, "refused": {}}
    assert summary["faults"]["kinds"] == {"run failed": 1}


def test_what_the_frames_of_an_error_hold_is_free_before_its_record_is_written(tmp_path):
    class Large:
        pass

    freed = []

    def fail():
        large = Large()
        weakref.finalize(large, lambda: freed.append((tmp_path / "failures.jsonl").exists()))
        raise RuntimeError("full")

    with pytest.raises(RunFailed), recorded(lambda: tmp_path):
        fail()
    assert freed == [False]

"""Commands that fail, in processes of their own; none of them is a real run."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.supervise import supervise

STUB = """
import json, os, signal, sys, time
from pathlib import Path
from rlinf_async.observe.attempt import Attempt
from rlinf_async.observe.events import Fault
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest, newest_sequence, written_aside

root, script, *overrides = sys.argv[1:]
root = Path(root)
checkpoints = root / "checkpoints"
with (root / "attempts").open("a") as file:
    file.write(f"{' '.join(overrides)}\\n")
attempt = len((root / "attempts").read_text().splitlines())

def announce():
    place = {"run_dir": str(root), "checkpoints": str(checkpoints), "resume": "resume=auto"}
    Attempt(**place, newest=newest_sequence(checkpoints)).announce()

def train(step):
    RunDir(root).log(step, {"loss": 1.0})

def save(step):
    with written_aside(checkpoints / f"global_step_{step}", {}) as aside:
        (aside / "weights").write_bytes(b"1")

def fail(error):
    RunDir(root).record(Fault(process="driver", what="run failed", error=error, action="the run ends"))
    sys.exit(1)

def kill(number):
    os.kill(os.getpid(), number)
    time.sleep(60)

exec(script)
"""


def run(tmp_path, script, *, restarts=5):
    """The exit status, what was said, and the overrides of every attempt."""
    said = []
    command = [sys.executable, "-c", textwrap.dedent(STUB), str(tmp_path), textwrap.dedent(script)]
    status = supervise(command, restarts=restarts, wait_s=0.0, say=said.append)
    return status, said, (tmp_path / "attempts").read_text().splitlines()


def test_a_run_that_ends_well_runs_once(tmp_path):
    assert run(tmp_path, "announce()") == (0, [], [""])


@pytest.mark.parametrize("status", [2, 130, 143, 129])
def test_what_cannot_begin_and_what_somebody_has_ended_is_not_tried_again(tmp_path, status):
    assert run(tmp_path, f"announce(); save(1); sys.exit({status})") == (status, [], [""])


def test_it_goes_on_from_the_newest_checkpoint_with_the_cause_said(tmp_path):
    status, said, attempts = run(
        tmp_path,
        """
        announce()
        train(attempt)
        if attempt == 1: fail("ActorDiedError: learner 0\\nand more")
        save(10 * attempt)
        if attempt == 2: kill(signal.SIGKILL)
        if attempt == 3: sys.exit(7)
        """,
    )
    assert (status, attempts) == (0, ["", "", "resume=auto", "resume=auto"])
    assert said == [
        "restart 1 of 5 from the beginning, as there is no checkpoint, in 0 s: ActorDiedError: learner 0",
        "restart 2 of 5 from step 20, in 0 s: the run was ended by SIGKILL",
        "restart 3 of 5 from step 30, in 0 s: the run has ended with status 7",
    ]
    # What has killed it, too, is in its record, once.
    assert [fault.error for fault in read_faults(tmp_path)] == [
        "ActorDiedError: learner 0\nand more",
        "the run was ended by SIGKILL",
        "the run has ended with status 7",
    ]


def test_a_broken_checkpoint_is_named(tmp_path):
    _, said, _ = run(
        tmp_path,
        """
        announce()
        train(attempt)
        if attempt == 1:
            save(1); save(2); (checkpoints / "global_step_2" / "weights").unlink(); sys.exit(1)
        """,
    )
    assert "global_step_2 is not whole" in said[0]
    assert said[1].startswith("restart 1 of 5 from step 1,")


def test_a_checkpoint_of_another_run_is_not_gone_on_from(tmp_path):
    save = "announce(); train(attempt); save(50)"
    assert run(tmp_path, save)[0] == 0
    (tmp_path / "attempts").unlink()
    _, said, attempts = run(tmp_path, "announce(); train(50 + attempt); sys.exit(attempt == 1)")
    assert attempts == ["", ""]
    assert "from the beginning" in said[0]


def test_what_was_written_under_a_clock_that_goes_back_is_gone_on_from(tmp_path):
    script = """
    announce(); train(attempt)
    now = time.time()
    time.time = lambda: now - 3600 * attempt
    if attempt < 3: save(attempt); sys.exit(1)
    """
    _, said, attempts = run(tmp_path, script)
    assert attempts == ["", "resume=auto", "resume=auto"]
    assert "from step 1" in said[0]
    assert "from step 2" in said[1]


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_cause_is_that_of_the_attempt_under_a_clock_that_is_set(tmp_path, hours):
    script = f"""
    now = time.time()
    time.time = lambda: now + {hours} * 3600 * attempt
    announce(); train(attempt)
    if attempt == 1: fail("first")
    if attempt == 2: fail("second")
    if attempt == 3: sys.exit(7)
    """
    _, said, _ = run(tmp_path, script)
    causes = ["first", "second", "the run has ended with status 7"]
    assert [sentence.rpartition(", in 0 s: ")[2] for sentence in said] == causes


def test_the_cause_is_known_where_the_record_before_was_put_aside(tmp_path):
    script = """
    announce(); train(attempt)
    if attempt == 2: RunDir(root).failures.unlink()
    if attempt < 3: fail(f"attempt {attempt}")
    """
    _, said, _ = run(tmp_path, script)
    assert [sentence.rpartition(", in 0 s: ")[2] for sentence in said] == ["attempt 1", "attempt 2"]


def test_it_gives_up_after_so_many_restarts(tmp_path):
    status, said, attempts = run(tmp_path, "announce(); train(attempt); fail('Bang: no')", restarts=2)
    assert (status, len(attempts)) == (1, 3)
    assert said[-1] == "it has failed 3 times, and --restarts=2: Bang: no"


@pytest.mark.parametrize(
    "script", ["sys.exit(1)", "announce(); fail('Bang: no')", "announce(); train(4); fail('Bang: no')"]
)
def test_it_gives_up_when_it_gets_no_further(tmp_path, script):
    status, said, attempts = run(tmp_path, script)
    trained = "train" in script
    assert (status, len(attempts)) == (1, 3 if trained else 2)
    assert "2 attempts in a row have got no further" in said[-1]


def test_what_the_run_leaves_behind_is_ended_with_it(tmp_path):
    script = """
    import subprocess
    announce()
    if attempt == 1:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (root / "left").write_text(str(left.pid))
        kill(signal.SIGKILL)
    """
    assert run(tmp_path, script)[0] == 0
    left = int((tmp_path / "left").read_text())
    state = Path(f"/proc/{left}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("when", ["running", "waiting"])
def test_signals_are_passed_on_and_end_it(tmp_path, number, when):
    script = f"""
    for one in ({signal.SIGTERM.value}, {signal.SIGINT.value}, {signal.SIGHUP.value}):
        signal.signal(one, lambda number, _: sys.exit(128 + number))
    (root / "ready").write_text("")
    if {when == "waiting"}:
        sys.exit(1)
    time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(STUB), str(tmp_path), textwrap.dedent(script)]
    supervising = (
        "import json, signal, sys; from rlinf_async.supervise import supervise; "
        # Whoever runs the tests may ignore some, which is passed on.
        "[signal.signal(one, signal.SIG_DFL) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]; "
        "say = lambda text: print(text, flush=True); "
        "sys.exit(supervise(json.loads(sys.argv[1]), restarts=3, wait_s=60.0, say=say))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", supervising, json.dumps(command)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if when == "waiting":
        assert "restart 1 of 3" in process.stdout.readline()
    else:
        give_up = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < give_up:
            os.sched_yield()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number


def test_the_command_line_imports_neither_torch_nor_ray(tmp_path):
    looks = (
        "import sys, rlinf_async.cli, rlinf_async.supervise; "
        "print([name for name in ('torch', 'ray', 'hydra') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", looks], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"

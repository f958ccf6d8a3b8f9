"""A run that something is killed of says which process it was, in one sentence, and leaves its sum."""

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from rlinf_async.observe.reading.run_reader import read_faults
from tests.listening import beyond_loopback
from tests.runs.conftest import COMMAND, ROOT, SMALL, Runner

pytestmark = pytest.mark.ray

SECURITY_PAGE = ROOT / "docs" / "security.md"
MOST_LINES = 10
"""On the terminal, beside the lines of the steps."""
OF_RAY = {"raylet": "/raylet/raylet ", "gcs_server": "/gcs/gcs_server "}


def number_of(victim: str, driver: int, run_dir: Path) -> int:
    """The number of a process of the run, or of one of Ray's that its driver has started."""
    if victim not in OF_RAY:
        return json.loads((run_dir / "status.json").read_text())["processes"][victim]["pid"]
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    commands = {child: Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ") for child in children}
    (found,) = [child for child, command in commands.items() if OF_RAY[victim] in command.partition("--")[0]]
    return int(found)


@pytest.mark.parametrize(
    "victim",
    [
        "gcs_server",
        pytest.param("raylet", marks=pytest.mark.nightly),
        pytest.param("learner rank 0", marks=pytest.mark.nightly),
        pytest.param("coordinator 0", marks=pytest.mark.nightly),
        pytest.param("request channel 0", marks=pytest.mark.nightly),
    ],
)
def test_what_has_died_is_named_with_what_to_do_and_the_sum_is_there(
    runs: Runner, tmp_path: Path, victim: str
) -> None:
    run_dir = tmp_path / "run"
    process = runs.start(
        *(*COMMAND, "train", "-n", "metaworld_ppo_mlp", *SMALL, "runner.max_epochs=100000"),
        f"runner.logger.log_path={run_dir}",
    )
    assert process.stdout is not None
    lines = []
    while "2/100000" not in (line := process.stdout.readline()):
        lines.append(line)
        assert line, "".join(lines)
    said_to_listen = set(re.findall(r"`(ray::\w+)`", SECURITY_PAGE.read_text()))
    assert {listener.partition(" ")[0] for listener in beyond_loopback(process.pid)} <= said_to_listen
    number = number_of(victim, process.pid, run_dir)
    of_the_run = psutil.Process(process.pid).children(recursive=True)
    os.kill(number, signal.SIGKILL)
    rest, _ = process.communicate(timeout=120)
    output = "".join(lines) + rest
    assert process.returncode == 1, output
    _, left = psutil.wait_procs(of_the_run, timeout=10)
    assert left == []  # Ray's helpers, which wait for a store that has died, too
    said = [line for line in output.splitlines() if not re.search(r"\d+/100000", line)]
    began = next(number for number, line in enumerate(said) if "starting Ray" in line)
    assert len(said[began:]) <= MOST_LINES, output  # behind the remarks on the config
    assert victim in said[-1], output
    assert f"({number}" in said[-1]
    assert "start the run again" in said[-1]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["ended"] == "failed"
    books = summary["trajectories"]
    assert books["trained"] >= 8
    assert books["produced"] == books["trained"] + books["in_flight"] + sum(books["refused"].values())
    assert [(fault.process, fault.what) for fault in read_faults(run_dir)] == [(victim, "run failed")]
    assert "Traceback" in (run_dir / "traceback.txt").read_text()

"""A run listens where `explain` says; who of it is killed is named in one sentence, and its sum is left."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.wire.listening import Listening
from tests.listening import beyond_loopback, listening_at_names
from tests.runs.conftest import COMMAND, ROOT, Runner

pytestmark = pytest.mark.ray

SECURITY_PAGE = ROOT / "docs" / "security.md"
MOST_LINES = 10
"""On the terminal, beside the lines of the steps."""
RUN = (
    *("-n", "bench/emulated", "async.mode=full", "runner.max_epochs=100000"),
    *("env.train.total_num_envs=8", "env.train.max_episode_steps=40", "env.train.service.decision_s=0.01"),
    *("actor.micro_batch_size=8", "actor.global_batch_size=16", "algorithm.update_epoch=1"),
    *("actor.model.service.train_sample_s=0.01", "actor.model.service.weights_mb=1"),
)
"""Pictures of 12 kB and rollouts of four: both stay where they are, to be read."""
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
def test_a_run_listens_where_explain_says_and_names_what_has_died_with_what_to_do_and_its_sum(
    runs: Runner, tmp_path: Path, victim: str
) -> None:
    run_dir = tmp_path / "run"
    asked = subprocess.run(
        [*COMMAND, "explain", *RUN, "--json"],
        env=runs.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    explained = {(place["who"], place["what"]) for place in json.loads(asked.stdout)["listens"]}
    process = runs.start(*COMMAND, "train", *RUN, f"runner.logger.log_path={run_dir}")
    assert process.stdout is not None
    lines = []
    # From the second batch on inference scores for the learner.
    while not explained <= (found := listened(process.pid, run_dir)) or "5/100000" not in "".join(lines):
        lines.append(process.stdout.readline())
        assert lines[-1], "".join(lines)
        assert "20/100000" not in lines[-1], explained ^ found
    assert found == explained
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
    assert books["trained"] >= 5 * 8
    assert books["produced"] == books["trained"] + books["in_flight"] + sum(books["refused"].values())
    assert [(fault.process, fault.what) for fault in read_faults(run_dir)] == [(victim, "run failed")]
    assert "Traceback" in (run_dir / "traceback.txt").read_text()


def listened(driver: int, directory) -> set[tuple[str, str]]:
    """Who of the driver's descendants listens by now, and for what, in the words of `explain`."""
    status = directory / "status.json"
    processes = json.loads(status.read_text())["processes"] if status.exists() else {}
    names = {process["pid"]: name for name, process in processes.items() if process and "pid" in process}
    return {
        (who(names.get(number, f"process {number} ?"), place), place.content)
        for number, name in listening_at_names(driver)
        for place in Listening
        if name.startswith(place.socket_name)
    }


def who(name: str, place: Listening) -> str:
    """`env worker 0` is one of the env workers, and the coordinator is alone; some places are one rank's."""
    if name in place.listeners:
        return name
    kind = name.rpartition(" ")[0]
    return f"the {kind}" if kind in ("request channel", "coordinator") else f"{kind}s"

"""A run listens where `explain` says, and nowhere else."""

import json
import subprocess

import pytest

from rlinf_async.wire.listening import Listening
from tests.listening import listening_at_names
from tests.runs.conftest import COMMAND, Runner

pytestmark = pytest.mark.ray

RUN = (
    *("-n", "bench/emulated", "async.mode=full", "runner.max_epochs=10000"),
    *("env.train.total_num_envs=8", "env.train.max_episode_steps=40", "env.train.service.decision_s=0.01"),
    *("actor.micro_batch_size=8", "actor.global_batch_size=16", "algorithm.update_epoch=1"),
    *("actor.model.service.train_sample_s=0.01", "actor.model.service.weights_mb=1"),
)
"""Pictures of 12 kB and rollouts of four: both stay where they are, to be read."""


def test_a_run_listens_where_explain_says(runs: Runner) -> None:
    command = [*COMMAND, "explain", *RUN, "--json"]
    asked = subprocess.run(command, env=runs.environment, capture_output=True, text=True, check=True)
    said = {(place["who"], place["what"]) for place in json.loads(asked.stdout)["listens"]}
    directory = runs.directory / "run"
    process = runs.start(*COMMAND, "train", *RUN, f"runner.logger.log_path={directory}")
    assert process.stdout is not None
    seen = ""
    # From the second batch on inference scores for the learner.
    while not said <= (found := listened(process.pid, directory)) or "5/10000" not in seen:
        seen += (line := process.stdout.readline())
        assert line, seen
        assert "20/10000" not in line, said ^ found
    assert found == said
    process.terminate()
    output, _ = process.communicate(timeout=200)
    assert "asked to end by SIGTERM" in output


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

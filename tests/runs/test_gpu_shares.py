"""A run with processes that share a GPU: each is held to its share, and one that needs more is named."""

import json
from pathlib import Path

import psutil
import pytest

from rlinf_async.core.gpu_shares import SharedGpu, size_in_words
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from tests.runs.conftest import COMMAND, SMALL, Run, Runner, small
from tests.runs.throwaway import install

pytestmark = pytest.mark.ray

HUNGRY = {
    "inference": ("rlinf_async.workers: rollout = HungryRolloutWorker", "smaller batches"),
    "learner": ("rlinf_async.workers: actor = HungryActorWorker", "smaller micro-batches"),
}
ON = "+async.advanced.gpu_shares=true"


@pytest.mark.parametrize("role", ["learner", pytest.param("inference", marks=pytest.mark.nightly)])
def test_a_process_beyond_its_share_ends_the_run_with_its_share_and_what_to_change(
    runs: Runner, tmp_path: Path, role: str
) -> None:
    entry_point, remedy = HUNGRY[role]
    runs.environment["PYTHONPATH"] = str(install(tmp_path, entry_point))
    run = tmp_path / "run"
    overrides = (*SMALL, ON, "runner.max_epochs=50", f"runner.logger.log_path={run}")
    process = runs.start(*COMMAND, "train", "-n", "metaworld_ppo_mlp", *overrides)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    said = " ".join(output.split())  # lines are folded
    total = int(psutil.virtual_memory().total)
    estimates = SharedGpu(
        name="node 0",
        learners=(0,),
        inference=(0,),
        others=("env worker 0",),
        learner_bytes=0,
        inference_bytes=0,
    )
    # The policy has some megabytes, which no digit shows.
    shares = estimates.divide(total)
    own = getattr(shares, role)
    assert f"of {size_in_words(total)}: at most learner rank {size_in_words(shares.learner)}" in said
    assert "this machine's memory stands in for one, and limits nothing" in said
    summary = json.loads((run / "summary.json").read_text())
    assert summary["ended"] == "failed"
    ending = summary["ending"]
    assert ending.startswith(f"{role} rank 0 (")
    share = f"it needs more than its share of node 0, {size_in_words(own)} of {size_in_words(total)}"
    assert share in ending
    assert f"use {remedy}" in ending
    assert "async.advanced.gpu_shares=false for no limit, and start the run again" in ending
    assert ending in output.splitlines()[-1]
    assert runs.survivors(process) == []


@pytest.mark.shared_run(small("metaworld_ppo_mlp", ON))
def test_a_run_with_shares_trains_and_shows_what_each_process_holds(ended: list[Run]) -> None:
    (run,) = ended
    assert run.output.count("async.advanced.gpu_shares: ") == 1
    assert run.summary["trajectories"]["trained"] == 24
    processes = RunReader(RunDir(run.directory).path).status().processes
    limited = {name for name, answer in processes.items() if answer and "gpu" in answer}
    assert limited == {"learner rank 0", "inference rank 0"}

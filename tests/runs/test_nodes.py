"""Two Ray nodes on one machine that pass for two machines, with a rank of every worker on each."""

import re
import signal
import subprocess
from collections import Counter

import pytest

from benchmarks.nodes.machines import unavailable
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.ray_runtime.cluster.template import can_be_forked
from tests.runs.apart import NOTES
from tests.runs.conftest import COMMAND, SMALL, Run, Runner

pytestmark = pytest.mark.ray

SCORED = ("actor.micro_batch_size=4", "algorithm.update_epoch=1")
PLACED = tuple(f"cluster.component_placement.{name}.placement=0-1" for name in ("env", "rollout", "actor"))


def test_on_two_nodes_a_shard_is_answered_by_the_inference_rank_beside_it_and_learners_agree_on_who_scores(
    runs: Runner,
) -> None:
    directory, notes = runs.directory / "run", runs.directory / "notes"
    runs.environment |= {"RLINF_EXT_MODULE": "tests.runs.apart", NOTES: str(notes)}
    runs.declare("rlinf_async.channels", "requests", "tests.runs.noting_channel:NotingChannel")
    process = runs.start_module(
        *("tests.runs.two_nodes", *COMMAND, "train", "-n", "metaworld_ppo_mlp"),
        *(*SMALL, "cluster.num_nodes=2", *PLACED, *SCORED),
        f"runner.logger.log_path={directory}",
    )
    output, _ = process.communicate(timeout=400)
    run = Run(process.returncode, output, directory)
    assert run.status == 0, run.output
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    spans = read_spans(directory / "trace")
    answered = Counter(
        (span["process"], shard) for span in spans if span["kind"] == "forward" for shard in span["shards"]
    )
    # Each node has a channel of its own.
    channels = {span["process"] for span in spans if span["kind"] == "queued"}
    assert channels == {"request channel 0", "request channel 1"}
    # Three rollouts of four decisions; no value is asked for behind the end of every episode.
    assert sum(answered.values()) == 4 * 3 * 4
    lines = [line.split() for line in notes.read_text().splitlines()]
    # Each node has a template of its own, and all workers were forked from one of the two.
    templates = {int(words[0]) for kind, *words in lines if kind == "began"}
    assert not can_be_forked() or (len(templates) == 2 and 0 not in templates), templates
    # A rank has taken what waited on the other node only while that node's own rank had work. How often, is a
    # matter of what else the machine does.
    took = [tuple(words) for kind, *words in lines if kind == "took"]
    nodes = {queue for _, queue, _ in took}
    assert len(nodes) == 2
    assert nodes >= {rank for rank, _, _ in took}
    assert [(rank, queue) for rank, queue, idle in took if rank != queue and idle == "1"] == []
    # The learner alone scores the first batch; of the others, whoever was first.
    shares = [line["train/scored_by_inference"] for line in run.metrics]
    assert shares[0] == 0.0
    assert max(shares) <= 1.0
    assert all(abs(line["train/actor/grad_norm"]) > 0 for line in run.metrics)
    # One of the two inference ranks is not on the learner's machine: it has fetched each version.
    fetched = [words for kind, *words in lines if kind == "fetched"]
    assert len({process for process, _, _ in fetched}) == 1
    assert [int(version) for _, changes, version in fetched if changes == "1"] == [0, 1, 2, 3]


def started_on_two_nodes(runs: Runner, *options: str, **ranks: str) -> subprocess.Popen[str]:
    """A long run with the ranks of its workers on these nodes."""
    runs.environment |= {"RLINF_EXT_MODULE": "tests.runs.apart", NOTES: str(runs.directory / "notes")}
    return runs.start_module(
        *("tests.runs.two_nodes", *options, *COMMAND, "train", "-n", "metaworld_ppo_mlp"),
        *(*SMALL, "cluster.num_nodes=2", "runner.max_epochs=10000"),
        *(f"cluster.component_placement.{name}.placement={nodes}" for name, nodes in ranks.items()),
        f"runner.logger.log_path={runs.directory / 'run'}",
    )


def ended_after_three_more_steps(runs: Runner, process: subprocess.Popen[str], seen: str) -> tuple[int, Run]:
    """Have a run train three more steps, and end it; return the number of its steps before, and the run."""
    steps = len(Run(0, seen, runs.directory / "run").metrics)
    seen += read_until(process, f"{steps + 3}/10000")
    process.terminate()
    output, _ = process.communicate(timeout=200)
    return steps, Run(process.returncode, seen + output, runs.directory / "run")


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    seen = ""
    while words not in (line := process.stdout.readline()):
        seen += line
        assert line, seen
    return seen + line


@pytest.mark.parametrize(
    "options",
    [
        # With simulators and a request channel it is lost below.
        pytest.param((), id="that is lost", marks=pytest.mark.nightly),
        pytest.param(
            ("--wire",),
            id="that nothing is heard of",
            marks=pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
        ),
    ],
)
def test_a_run_goes_on_without_the_inference_rank_of_a_node(runs: Runner, options: tuple[str, ...]) -> None:
    process = started_on_two_nodes(runs, *options, env="0", rollout="0-1", actor="0")
    seen = read_until(process, "2/10000")
    process.send_signal(signal.SIGUSR1)
    seen += read_until(process, "inference rank 1 is given up, as its node is lost")
    assert "1 of 2 inference ranks go on" in seen
    steps, run = ended_after_three_more_steps(runs, process, seen)
    trajectories = run.summary["trajectories"]
    assert trajectories["refused"] == {}, run.output
    assert trajectories["trained"] >= 8 * (steps + 3)
    assert trajectories["produced"] == trajectories["trained"] + trajectories["in_flight"]
    faults = [(fault.process, fault.what, fault.action) for fault in read_faults(run.directory)]
    assert ("inference rank 1", "node lost", "given up") in faults


def test_a_node_that_is_lost_with_simulators_inference_and_request_channel_costs_its_rollouts(
    runs: Runner,
) -> None:
    """Its env worker goes on on the other node, and what it was collecting is collected again."""
    process = started_on_two_nodes(runs, env="0-1", rollout="0-1", actor="0")
    seen = read_until(process, "2/10000")
    process.send_signal(signal.SIGUSR1)
    seen += read_until(process, "env worker 1 is back")
    moved = re.search(r"env worker 1 is (started on \S+), as its node is lost", seen)
    assert moved is not None, seen
    steps, run = ended_after_three_more_steps(runs, process, seen)
    trajectories = run.summary["trajectories"]
    assert trajectories["trained"] >= 8 * (steps + 3), run.output
    # Rollouts that were under way. Those that waited for the learner were with it.
    assert set(trajectories["refused"]) == {"env worker died"}, run.output
    lost = trajectories["produced"] - trajectories["trained"] - trajectories["in_flight"]
    assert lost == sum(trajectories["refused"].values()) > 0
    faults = [(fault.process, fault.what, fault.action) for fault in read_faults(run.directory)]
    assert ("env worker 1", "node lost", moved[1].replace("started", "started again")) in faults
    given_up = {process for process, _, action in faults if action == "given up"}
    assert given_up == {"inference rank 1", "request channel 1"}
    assert sum(line["async/restarts/env_worker"] for line in run.metrics) == 1
    assert max(line["async/staleness/max"] for line in run.metrics) <= 1


def test_the_loss_of_a_learners_node_ends_the_run_with_a_sentence_that_names_it(runs: Runner) -> None:
    process = started_on_two_nodes(runs, env="0", rollout="0", actor="1")
    read_until(process, "2/10000")
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "learner rank 0" in output
    assert "was on a node that is lost" in output, output

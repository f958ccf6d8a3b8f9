import asyncio
import json

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.micro import brokers, copies, core, differences, ratios, spans, weights
from benchmarks.micro.__main__ import app
from rlinf_async.observe.reading.spans import read_spans


@pytest.mark.parametrize("benchmark", [core, brokers], ids=lambda module: module.__name__)
@pytest.mark.parametrize("shards", [1, 3, 300])
@pytest.mark.parametrize("tasks", [False, True])
def test_a_measurement_passes_whole_batches_through_everything(benchmark, shards, tasks):
    sizes = {"requests": 3 * shards * core.ROLLOUT_DECISIONS, "tasks": tasks}
    assert core.requests_per_second(benchmark.cpu_seconds, shards, **sizes) > 0
    assert core.us_per_rollout(benchmark.cpu_seconds, shards, tasks=tasks, rollouts=3 * shards) > 0


def test_a_round_measures_both_rules_of_balance_for_every_number_of_shards():
    def cpu_seconds(shards, *, batches, decisions, tasks):
        return batches * shards * (decisions + 1) * (2e-6 if tasks else 1e-6)

    measured = core.measure(1, cpu_seconds)
    per_rollout = {str(shards): 1 for shards in core.SHARD_COUNTS}
    assert measured["us_per_rollout, exact"] == per_rollout
    assert measured["us_per_rollout, tasks"] == {shards: 2 for shards in per_rollout}
    assert measured["requests_per_second, exact"]["64"] == round(48 / 49e-6)


def test_copies_bring_every_row_by_mapped_pages_and_by_reads(monkeypatch):
    for name, value in {"FILES": 2, "FILE_ROWS": 3, "ROW_BYTES": 5_000, "MICRO_BATCH_ROWS": 4}.items():
        monkeypatch.setattr(copies, name, value)
    assert set(copies.measure(1)) == {"rounds", "write", "map", "copy", "unmap", "pread", "least"}


def test_a_span_takes_time_whether_it_is_written_or_not(tmp_path):
    assert spans.microseconds(str(tmp_path), spans=10) > 0
    assert spans.microseconds(None, spans=10) > 0
    assert len(read_spans(tmp_path)) == 10


def test_a_command_writes_its_result_beside_those_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(
        core, "measure", lambda rounds, *, most_shards: {"rounds": rounds, "most": most_shards}
    )
    file = tmp_path / "results.json"
    file.write_text('{"requests": {"kept": true}}')
    result = CliRunner().invoke(app, ["core", "--rounds", "2", "--shards", "8", "--json", str(file)])
    assert result.exit_code == 0, result.output
    held = json.loads(file.read_text())
    assert held["requests"] == {"kept": True}
    assert (held["core"]["rounds"], held["core"]["most"]) == (2, 8)
    assert "python" in held["core"]["versions"]


def test_ratios_measure_copies_of_the_versions_that_are_kept(monkeypatch):
    monkeypatch.setattr(ratios, "VERSION_BYTES", 40_000)
    seconds, held = ratios.seconds_per_batch("cpu", 2, 3)
    assert len(seconds) == 3
    assert held == 3 * 40_000


def test_weights_move_as_those_of_a_trained_transformer_and_back_again(monkeypatch):
    monkeypatch.setattr(weights, "OPTIMIZER_STEPS", 1)
    learner = weights.Learner(32)
    (first,), (before, _), (after, _) = states(learner), *differences.trained(weights.RATE, (1,))
    moved = (before.bfloat16() != after.bfloat16()).double().mean().item()
    asyncio.run(learner.train())
    (second,) = states(learner)
    assert (second != first).double().mean().item() == pytest.approx(moved, rel=0.05)
    asyncio.run(learner.train())
    assert torch.equal(states(learner)[0], first)


def states(learner):
    return [tensor.view(torch.int16).clone() for tensor in learner._model.state_dict().values()]


def test_every_way_to_write_a_difference_is_exact_and_its_length_is_told(monkeypatch):
    monkeypatch.setattr(differences, "RATES", (2e-6,))
    monkeypatch.setattr(differences, "STEP_COUNTS", (1,))
    measured = differences.measure(1, len(differences.RATES))["cases"]["lr 2e-06, 1 optimizer step, bfloat16"]
    (before, _), (after, _) = differences.trained(2e-6, (1,))
    changed = (before.bfloat16() != after.bfloat16()).double().mean().item()
    assert measured["changed words"]["share"] == pytest.approx(2 * changed, rel=0.1)
    assert 0 < measured["published"]["share"] < measured["changed words"]["share"]

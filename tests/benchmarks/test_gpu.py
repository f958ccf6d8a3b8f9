import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import runs, simulators
from benchmarks.gpu.passes import CudaClock, HostClock, Passes, filled
from benchmarks.gpu.policy import CHUNK_ACTIONS, IMAGE_NUMBERS, Size, vla
from rlinf_async.config import MODE_LEVELS
from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import point_reach
from tests.hosts.local_runs import small, small_policy

KEYS = {
    "mode",
    "envs",
    "device",
    "repetitions",
    "env_steps_per_second",
    "ratio",
    "device_busy",
    "inference_busy",
    "learner_busy",
    "env_busy",
    "peak_memory_bytes",
    "batch_size",
    "staleness",
    "seconds",
    "parameters",
    "runs",
}

FOLDER = Path(runs.__file__).parent
TINY = {"device": "cpu", "params": 20_000, **command.QUICK_SIZES, "decision_ms": 0.1}


def call(*arguments):
    return CliRunner().invoke(command.app, arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "tpu"], "device='tpu' must be cuda or cpu"),
        (["--modes", "off,fast"], "mode 'fast' must be one of off, lean, train, rollout, streamer, full"),
        (["--envs", "real"], "envs='real' must be emulated or metaworld"),
        (["--params", "5"], "params=5 must be at least 20000"),
        (["--decision-ms", "0"], "decision_ms=0.0 must be positive"),
        (["--repetitions", "0"], "repetitions=0 must be at least 1"),
        (["--optimizer-steps", "3"], "are not a multiple of"),
        (["--total-envs", "0"], "total_envs=0 must be at least 1"),
        (["--total-envs", "6"], "is not a multiple of micro_batch_size=32"),
    ],
)
def test_a_bad_argument_is_refused_with_a_sentence(arguments, sentence):
    result = call("--device", "cpu", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_a_missing_device_is_told_with_what_works_without(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = call()
    assert result.exit_code == 2
    assert "--device cpu --params 100000 --quick" in " ".join(result.output.split())


def test_a_missing_simulator_is_told_with_its_package(monkeypatch):
    monkeypatch.setattr(runs, "find_spec", lambda name: None)
    result = call("--device", "cpu", "--envs", "metaworld")
    assert result.exit_code == 2
    assert "pip install metaworld" in " ".join(result.output.split())


def test_a_quick_run_on_the_cpu_gives_a_row_for_every_mode(tmp_path):
    path = tmp_path / "gpu.json"
    sizes = ("--params", "20000", "--decision-ms", "0.1")
    result = call("--device", "cpu", "--quick", *sizes, "--json", str(path))
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    rows = {row["mode"]: row for row in written["rows"]}
    assert list(rows) == list(MODE_LEVELS)
    assert written["settings"]["envs"] == "emulated"
    assert all(mode in result.output for mode in MODE_LEVELS)
    for row in rows.values():
        assert row.keys() == KEYS
        assert row["env_steps_per_second"] > 0
        assert all(0 < row[name] <= 1 for name in ("device_busy", "inference_busy", "learner_busy"))
        one = row["runs"][0]
        assert one["env_steps"] == command.QUICK_SIZES["batches"] * 8 * 4 * CHUNK_ACTIONS
    assert rows["off"]["ratio"] == 1.0
    assert rows["off"]["batch_size"] == {"min": 8, "mean": 8.0, "max": 8}
    assert all(rows[mode]["staleness"]["max"] == 0 for mode in ("off", "rollout", "streamer"))


def test_repetitions_are_interleaved_and_begin_with_the_synchronous_loop(monkeypatch):
    monkeypatch.setattr(runs, "run", lambda bench, mode: {})
    bench = runs.Bench(**{**TINY, "repetitions": 2}, modes=("full", "train", "full"))
    assert [mode for mode, _ in runs.repetitions(bench)] == ["off", "full", "train"] * 2


def made(rate, busy=0.5):
    """A run that trains `rate` env steps a second."""
    shares = dict.fromkeys(("device_busy", "inference_busy", "learner_busy", "env_busy"), busy)
    spread = {"min": 1, "mean": rate, "max": 2}
    return {
        "env_steps_per_second": rate,
        "seconds": 1.0,
        **shares,
        "peak_memory_bytes": None,
        "batch_size": spread,
        "staleness": spread,
        "parameters": 1,
    }


def test_rows_hold_medians_and_ratios_within_a_repetition():
    bench = runs.Bench(**TINY, modes=("off", "full"))
    rates = [("off", 10.0), ("full", 20.0), ("off", 30.0), ("full", 120.0), ("off", 20.0), ("full", 30.0)]
    off, full = runs.rows(bench, [(mode, made(rate)) for mode, rate in rates])
    assert (off["env_steps_per_second"], full["env_steps_per_second"]) == (20.0, 30.0)
    assert (off["ratio"], full["ratio"]) == (1.0, 2.0)
    assert full["repetitions"] == len(full["runs"]) == 3


def test_a_benchmark_that_is_cut_off_has_rows_of_what_it_has_run():
    bench = runs.Bench(**TINY, modes=("off", "train", "full"))
    rows = runs.rows(bench, [("off", made(1.0)), ("train", made(2.0)), ("off", made(1.0))])
    assert [(row["mode"], row["repetitions"]) for row in rows] == [("off", 2), ("train", 1)]


def test_what_overlaps_fills_a_window_once():
    spans = [(0.0, 2.0), (1.0, 3.0), (1.5, 1.6), (5.0, 9.0)]
    assert filled(spans, (0.0, 10.0)) == pytest.approx(0.7)
    assert filled(reversed(spans), (2.5, 6.5)) == pytest.approx(0.5)
    assert filled([], (0.0, 1.0)) == 0.0


def test_the_cuda_clock_marks_the_stream_of_the_thread_and_waits_before_it_reads(monkeypatch):
    class Event:
        made = 0

        def __init__(self, enable_timing):
            assert enable_timing
            self.done, self.stream = False, None

        def record(self, stream):
            self.stream, self.at = stream, 500.0 * Event.made
            Event.made += 1

        def synchronize(self):
            self.done = True

        def elapsed_time(self, other):
            assert self.done
            assert other.done
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream of this thread")
    clock = CudaClock("cuda")
    first, second = clock.mark(), clock.mark()
    assert first.stream == "stream of this thread"
    assert clock.seconds(second) - clock.seconds(first) == pytest.approx(0.5)


@pytest.mark.parametrize("params", [20_000, 100_000, 10_000_000, 500_000_000])
def test_sizes_come_near_the_parameters_asked_for(params):
    size = Size.of(params)
    assert 12 * size.layers * size.width**2 == pytest.approx(params, rel=0.4 if params < 1e6 else 0.1)
    assert size.width % size.heads == 0


def test_the_policy_scores_its_own_actions_as_it_did_when_it_acted():
    policy = vla(20_000, device="cpu", dtype=torch.float32)(
        state_dim=IMAGE_NUMBERS + 3, action_dim=2 * CHUNK_ACTIONS
    )
    states, noise = torch.rand(3, 2, IMAGE_NUMBERS + 3), torch.randn(3, 2, 2 * CHUNK_ACTIONS)
    with torch.no_grad():
        actions, logprobs, values = policy.act(states, noise)
        again, all_values = policy.evaluate(states, actions[:2])
    assert actions.shape == noise.shape
    assert (logprobs.shape, values.shape, again.shape) == ((3, 2), (3, 2), (2, 2))
    assert torch.allclose(again, logprobs[:2], atol=1e-4)
    assert torch.allclose(all_values, values, atol=1e-5)


def test_pictures_are_cut_into_patches():
    policy = vla(20_000, device="cpu", dtype=torch.float32)(
        state_dim=IMAGE_NUMBERS + 3, action_dim=CHUNK_ACTIONS
    )
    picture = torch.arange(IMAGE_NUMBERS, dtype=torch.float32).view(1, 64, 64, 3)
    policy.patch_in = torch.nn.Identity()
    policy.state_in = torch.nn.Linear(3, 48)
    policy.queries = torch.nn.Parameter(torch.zeros(CHUNK_ACTIONS, 48))
    policy.positions = torch.nn.Parameter(torch.zeros(1))
    tokens = policy._tokens(torch.cat([picture.flatten(1), torch.zeros(1, 3)], dim=1))
    assert torch.equal(tokens[0, 17].view(4, 4, 3), picture[0, 4:8, 4:8])


def test_meta_world_shards_take_chunks_and_give_pictures():
    pytest.importorskip("metaworld")
    envs = simulators.metaworld(total=2, horizon=2, seed=0)(0, 2)
    try:
        states = envs.begin()
        later, _, ended = envs.decide(torch.zeros(2, envs.action_dim).numpy())
    finally:
        envs.close()
    assert states.shape == later.shape == (2, envs.state_dim)
    assert envs.action_dim == 4 * CHUNK_ACTIONS
    assert not ended.any()


@pytest.mark.parametrize(("name", "wait"), [("h200", None), ("h200_wait", 20)])
def test_the_page_shows_what_was_measured(name, wait):
    found = json.loads((FOLDER / "results" / f"{name}.json").read_text())
    assert found["settings"].get("max_wait_ms") == wait
    assert found["machine"]["device"] == "NVIDIA H200"
    page = (FOLDER / "README.md").read_text()
    for row in found["rows"]:
        busy = (row[f"{name}_busy"] for name in ("device", "inference", "learner", "env"))
        cells = (
            f"`{row['mode']}`",
            str(row["repetitions"]),
            f"{row['env_steps_per_second']:.0f}",
            f"{row['ratio']:.2f}",
            *(f"{share:.0%}".replace("%", " %") for share in busy),
            f"{row['batch_size']['mean']:.1f}",
            f"{row['peak_memory_bytes'] / 2**30:.1f} GiB",
        )
        assert f"| {' | '.join(cells)} |" in page


def test_both_kinds_of_passes_are_recorded_in_the_threads_that_make_them():
    settings, passes = small({"mode": "off"}), Passes(HostClock())
    with passes.recorded(GaussianPolicy):
        LocalTrainer(settings, point_reach(), small_policy).run()
    LocalTrainer(settings, point_reach(), small_policy).run()  # not recorded
    # One request per observation, of everybody; the last is for the values where rollouts are cut.
    rollouts = settings.batches * settings.plan.rollout_epochs
    # Before the first: twice from one state, then in two modes twice in company and twice alone.
    examined = 2 + 2 * (2 + 2)
    assert len(passes.spans("inference")) == examined + rollouts * (settings.horizon + 1)
    assert passes.spans("learner")
    assert len(passes.spans("inference", "learner")) == len(passes._marks)

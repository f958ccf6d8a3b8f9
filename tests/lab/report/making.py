"""Run directories as a run would leave them, small enough to know every number."""

import json
from pathlib import Path

import yaml

PLAN = {
    "total_envs": 8,
    "env_workers": 1,
    "inference_ranks": 1,
    "learner_ranks": 1,
    "shards_per_worker": 2,
    "rollout_epochs": 1,
    "group_size": 1,
}
FACTS = {
    "title": "rlinf-async 0.1.0: levels train + rollout + streamer",
    "began": 1795289882.96,
    "versions": {"rlinf-async": "0.1.0", "torch": "2.13.0"},
    "python": "3.11.7",
    "cores": 16,
    "levels": {"train": True, "rollout": True, "streamer": True},
    "max_staleness": 1,
    "steps": 3,
    "plan": PLAN,
    "horizon": 4,
    "max_batch_size": 8,
    "max_wait_s": 0.0,
    "micro_batch_size": 8,
}
CONFIG = {
    "runner": {"logger": {"log_path": "/data/alice/runs/mine"}, "val_check_interval": 5, "save_interval": -1},
    "algorithm": {"update_epoch": 1, "adv_type": "gae"},
    "env": {"train": {"env_type": "metaworld", "total_num_envs": 8}},
    "actor": {"model": {"precision": "fp32", "model_path": "/data/alice/models/pi0"}},
    "cluster": {"num_nodes": 1, "component_placement": {"actor,env,rollout": "all"}},
    "weight_syncer": {"type": "bucket", "bucket": {"bucket_dtype": None}},
    "async": {"mode": "full", "rollout": {"enabled": True, "shards": 2}},
}
SUMMARY = {"steps": 3, "trajectories": {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}}

WINDOW = (10.0, 30.0)
"""From the end of the first step to that of the last."""
TRACE = {
    "driver": [
        ("learn", 0, 10, {"step": 1}),
        ("learn", 10, 19, {"step": 2}),
        ("learn", 20, 28, {"step": 3}),
        ("evaluate", 28, 30, {"step": 3}),
    ],
    "env worker 0": [
        ("step", 8, 14, {"shard": 0}),
        ("ask", 14, 16, {"shard": 0}),
        ("step", 16, 20, {"shard": 0}),
        ("reset", 20, 21, {"shard": 0}),
        ("gate", 21, 25, {"shard": 0}),
        ("put", 25, 26, {"shard": 0, "batch": 1, "epoch": 0}),
        ("step", 10, 12, {"shard": 1}),
        ("ask", 12, 30, {"shard": 1}),
        ("ask", 11, 12, {"shard": 2, "mode": "eval"}),
    ],
    "inference rank 0": [
        ("forward", 10, 15, {"shards": [0, 1], "size": 8}),
        ("load", 14, 17, {"version": 1}),
        ("idle", 16, 22, {}),
    ],
    "learner rank 0": [
        ("accept", 5, 6, {"batch": 0, "pieces": [[0, 0, 0, 4, 0, 0], [1, 0, 0, 4, 0, 0]]}),
        ("fetch", 10, 14, {"batch": 1}),
        ("accept", 12, 16, {"batch": 1, "pieces": [[0, 0, 0, 4, 1, 1], [1, 0, 0, 4, 1, 0]]}),
        ("micro-batch", 13, 16, {}),
        ("finish", 16, 18, {"batch": 1}),
        ("optimizer step", 17, 18, {}),
        ("copy", 18, 19, {"version": 2}),
    ],
    "request channel 0": [("queued", 10, 10.5, {"requests": 2, "size": 8})],
}


def metrics(step, **changes):
    """A line of `metrics.jsonl`: the learner is busiest."""
    line = {"step": step, "async/step_seconds": 10.0, "async/env_steps": 320.0, "async/batch/size/mean": 4.0}
    line |= {"async/busy/env": 0.3, "async/busy/inference": 0.2, "async/busy/learner": 0.9}
    line |= {"async/busiest/env": 0.5, "async/busiest/inference": 0.2, "async/busiest/learner": 0.9}
    line |= {"async/staleness/mean": 1.0, "async/staleness/max": 1.0, "async/publication_seconds": 0.01}
    line |= {"env/success_once": step / 10, "env/return": float(step)}
    line |= {"async/env_steps_per_second": 32.0, "train/actor/policy_loss": -0.01 * step}
    line |= {"train/critic/explained_variance": -396.0 if step == 1 else 0.5, "train/actor/entropy_loss": 0.0}
    return line | {name.replace("__", "/"): value for name, value in changes.items()}


def write_trace(directory, trace, *, offset=0.0):
    directory.mkdir(parents=True, exist_ok=True)
    for process, spans in trace.items():
        lines = [{"process": process, "pid": 1, "offset": offset}]
        lines += [{"kind": kind, "began": b, "ended": e, **facts} for kind, b, e, facts in spans]
        path = directory / f"{process.replace(' ', '-')}-1.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(
    directory: Path,
    *,
    config=None,
    facts=None,
    lines=None,
    trace=None,
    summary=SUMMARY,
    status=None,
    name="mine",
) -> Path:
    """A whole run; give None for a file that a test is not about, and {} or [] for one that is not there."""
    run = directory / name
    run.mkdir(parents=True)
    config = CONFIG if config is None else config
    facts = FACTS if facts is None else facts
    lines = [metrics(step) for step in (1, 2, 3)] if lines is None else lines
    trace = TRACE if trace is None else trace
    if config:
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    if facts:
        (run / "run.json").write_text(json.dumps(facts))
    if lines:
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary:
        (run / "summary.json").write_text(json.dumps(summary))
    if status:
        (run / "status.json").write_text(json.dumps(status))
    if trace:
        write_trace(run / "trace", trace)
    return run

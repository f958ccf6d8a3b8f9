"""The output of `rlinf-async status`: a run from outside, while it goes on or after it has stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf_async.observe.activity import seconds, who_does_what
from rlinf_async.observe.failures import count_failures, read_failures, sentence
from rlinf_async.observe.pace import WINDOW_STEPS, clock
from rlinf_async.observe.run_dir import RunDir

ENDING_WORDS = {
    "failed": "has failed",
    "interrupted": "was interrupted",
    "terminated": "was asked to end, and has ended",
}
"""The end of a run that has not trained its last step, in words, by `ended` of its summary."""
STALE_S = 20.0
"""Seconds of silence after which a driver, which writes every few seconds, does not write any more."""
SILENT_STEPS = 3
"""Durations of a step without a word that count as silence, in a run that reports only after each step."""


def status_facts(run: Path, *, now: float | None = None) -> dict[str, Any]:
    """Return the state of a run as plain data; times in seconds.

    Returns:
        `state`: `moving`, `still` (nothing has ended for a second), `silent` (the driver says nothing any
        more) or `ended`; `step` and `total`; `pace` of the last steps, as far as they were reported:
        `env_steps_per_second`, `step_s`, `left_s`, `success`, `return`. While it goes on also `seen_s`, the
        age of what is said, `still_s`, `driver`, the driver's process, and `processes`: each with what it
        is `doing`, in words, and `open`, its spans. At its end `summary`, as in summary.json. Where something
        has failed, `faults`: how many, in words, and the `last`, as in failures.jsonl, and its age.

    Raises:
        ValueError: there is no such run, or it has written nothing yet.
    """
    if not run.is_dir():
        raise ValueError(f"{run} is no directory; name the run directory, which holds config.yaml")
    records, now = RunDir(run), time.time() if now is None else now
    faults = _faults(run, now)
    if summary := records.read(records.summary):
        steps, total = summary.get("steps"), records.read(records.facts).get("steps")
        return {
            "state": "ended",
            "step": steps,
            "total": total,
            "pace": _pace(records, 0),
            "summary": summary,
            **faults,
        }
    record = records.read(records.status)
    if not {"time", "step", "total"} <= record.keys():
        problems = " ".join(f"; {problem.rstrip('.')}" for problem in records.problems)
        raise ValueError(f"{run} says nothing about itself: {_reason(records)}{problems}")
    # A clock that has gone back since makes it no younger than now.
    age, pace = max(0.0, now - record["time"]), _pace(records, record["total"] - record["step"])
    # Without processes that are asked, it is said when a step ends, and a step may take minutes.
    patience = STALE_S if record["processes"] else max(STALE_S, SILENT_STEPS * pace.get("step_s", 0.0))
    return {
        "state": "silent" if age > patience else "moving" if record.get("still_s", 0.0) < 1 else "still",
        "step": record["step"],
        "total": record["total"],
        "pace": pace,
        "seen_s": round(age, 3),
        "still_s": record.get("still_s", 0.0),
        "driver": record.get("driver"),
        "processes": {
            name: {"doing": line, "open": (record["processes"][name] or {}).get("open")}
            for name, line in who_does_what(record["processes"])
        },
        **faults,
    }


def _faults(run: Path, now: float) -> dict[str, Any]:
    failures = read_failures(run)
    if not failures:
        return {}
    age = round(max(0.0, now - failures[-1]["time"]), 3)
    return {"faults": {"counted": str(count_failures(run)), "last": failures[-1], "age_s": age}}


def status_of(run: Path, *, now: float | None = None) -> list[str]:
    """Return the state of a run, line by line.

    Raises:
        ValueError: there is no such run, or it has not said anything yet.
    """
    return lines_of(status_facts(run, now=now))


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts of `status_facts` in words."""
    if facts["state"] == "ended":
        summary, ledger = facts["summary"], facts["summary"].get("trajectories", {})
        trained = f"{ledger.get('trained')} of {ledger.get('produced')} trajectories trained"
        took = seconds(float(summary.get("seconds", 0)))
        how = ENDING_WORDS.get(str(summary.get("ended")), "has ended")
        return [f"The run {how}: {facts['step']} steps in {took}, {trained}.", *_faults_in_words(facts)]
    lines = [f"step {facts['step']} of {facts['total']}; {_moves(facts)}"]
    lines += [f"  {', '.join(pace)}"] if (pace := _pace_in_words(facts["pace"])) else []
    lines += _faults_in_words(facts)
    return lines + [f"  {name}: {process['doing']}" for name, process in facts["processes"].items()]


def _faults_in_words(facts: Mapping[str, Any]) -> list[str]:
    if "faults" not in facts:
        return []
    faults = facts["faults"]
    return [f"  {faults['counted']}; the last {seconds(faults['age_s'])} ago: {sentence(faults['last'])}"]


def _pace(records: RunDir, remaining: int) -> dict[str, float]:
    """Return the pace of the steps that were reported last; the first, which fills the pipeline, counts if
    alone.
    """
    lines = [line for line in records.read_metrics() if line.get("async/step_seconds", 0.0) > 0]
    recent = (lines[1:] or lines)[-WINDOW_STEPS:]
    if not recent:
        return {}
    took = sum(line["async/step_seconds"] for line in recent)
    pace = {
        "env_steps_per_second": sum(line.get("async/env_steps", 0.0) for line in recent) / took,
        "step_s": took / len(recent),
        "left_s": remaining * took / len(recent),
    }
    last = {"success": "env/success_once", "return": "env/return"}
    return pace | {name: lines[-1][metric] for name, metric in last.items() if metric in lines[-1]}


def _pace_in_words(pace: Mapping[str, float]) -> list[str]:
    if not pace:
        return []
    parts = [f"{pace['env_steps_per_second']:.0f} fresh env steps/s", f"{pace['step_s']:.2f} s a step"]
    parts += [f"success {pace['success']:.0%}"] if "success" in pace else []
    return [*parts, f"{clock(pace['left_s'])} left"]


def _moves(facts: Mapping[str, Any]) -> str:
    age = seconds(facts["seen_s"])
    if facts["state"] == "silent":
        return f"the driver (process {facts['driver']}) has said nothing for {age}: it has died or hangs"
    if facts["state"] == "moving":
        return f"it moves (seen {age} ago)"
    return f"nothing has ended for {seconds(facts['still_s'])} (seen {age} ago)"


def _reason(records: RunDir) -> str:
    if records.facts.exists():
        return (
            "it has only just started, or with async.mode=off its first step has not ended; ask again later"
        )
    return "it is no run directory of rlinf-async, or its workers are being built"

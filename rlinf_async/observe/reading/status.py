"""The state of a run, read from its directory while it goes on or after its end: `rlinf-async status`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlinf_async.observe.events import ENDING_WORDS
from rlinf_async.observe.pace import clock, seconds
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.resources import in_words
from rlinf_async.observe.spans import kind_words
from rlinf_async.observe.state import RunState


def who_does_what(processes: Mapping[str, Mapping[str, Any] | None]) -> list[tuple[str, str]]:
    """Return name and activity of each process, in words, with numbers and durations of its open spans.

    Args:
        processes: by name, the result of `RunProcess.doing`; None for a process that does not answer.
    """
    return [(name, _activity_line(activity)) for name, activity in processes.items()]


def progress_of(processes: Mapping[str, Mapping[str, Any] | None]) -> dict[str, int]:
    """Return the number of ended spans of each process that answers; the run moves when one has changed."""
    return {name: int(activity["ended"]) for name, activity in processes.items() if activity is not None}


def _activity_line(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "does not answer"
    parts = [_group(kind, spans) for kind, spans in _by_kind(_innermost(answer["open"])).items()]
    if "trajectories" in answer:
        parts.append(f"version {answer['version']}; {answer['trajectories']}")
    return ", ".join(parts) or "between two tasks"


def _by_kind(spans: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for span in spans:
        groups[str(span["kind"])].append(span)
    return groups


def _innermost(spans: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the spans without those that contain, or run beside, the more detailed ones.

    Training contains micro-batches and optimizer steps; the fetch for the next batch runs beside it.
    """
    kinds = {span["kind"] for span in spans}
    trains = kinds & {"accept", "finish"}
    outer = {"fetch"} if trains else set()
    if kinds & {"micro-batch", "optimizer step"}:
        outer |= {"accept", "finish"}
    return [span for span in spans if span["kind"] not in outer]


def _group(kind: str, spans: Sequence[Mapping[str, Any]]) -> str:
    oldest = max(spans, key=lambda span: float(span["seconds"]))
    age = f"for {seconds(float(oldest['seconds']))}"
    if "shard" not in oldest:
        facts = "".join(f", {name} {oldest[name]}" for name in ("batch", "version", "size") if name in oldest)
        return f"{kind_words(kind)} {age}{facts}"
    longest = f"shard {oldest['shard']}"
    if len(spans) == 1:
        return f"{longest} {kind_words(kind)} {age}"
    return f"{len(spans)} shards {kind_words(kind)} (longest: {longest}, {age})"


STALE_S = 20.0
"""A driver writes its status every few seconds; after this many seconds without one it counts as silent."""
SILENT_STEPS = 3
"""A run that writes its status only after each step counts as silent after this many step durations."""


def status_facts(run: Path, *, now: float | None = None) -> dict[str, Any]:
    """Return the state of a run as plain data; times in seconds.

    Returns:
        `state`: `moving`, `still` (no span has ended for a second), `silent` (the driver writes no status any
        more) or `ended`; `step` and `total`; `pace` of the last reported steps: `env_steps_per_second`,
        `step_s`, `left_s`, `success`, `return`. For a run that goes on also: `seen_s`, the age of the status;
        `still_s`; `driver`, the driver's process number; `processes`, each with its activity in words
        (`doing`) and its spans (`open`); `holds`, the resources of each process (`observe.resources`); and
        `foretold`, sentences about resources that will run out. For an ended run: `summary`, as in
        summary.json. If faults are recorded: `faults`, with their number in words, the `last` one as in
        failures.jsonl, and its age. `bound`: what bounds the run, in the sentence of terminal and report;
        None before a step has ended.

    Raises:
        ValueError: there is no such run, or it has written nothing yet.
    """
    if not run.is_dir():
        raise ValueError(f"{run} is no directory; name the run directory, which holds config.yaml")
    records, now = RunReader(run), time.time() if now is None else now
    state = records.state()
    faults, bound = _faults(state, now), state.bound and state.bound.sentence()
    if summary := records.summary():
        return {
            "state": "ended",
            "step": summary.get("steps"),
            "total": records.facts().get("steps"),
            "pace": _pace(state, 0),
            "bound": bound,
            "summary": summary,
            **faults,
        }
    if (status := records.status()) is None:
        problems = " ".join(f"; {problem.rstrip('.')}" for problem in dict.fromkeys(records.problems))
        raise ValueError(f"{run} has no status and no summary: {_reason(records)}{problems}")
    # max: the clock may have been set back since.
    age, pace = max(0.0, now - status.time), _pace(state, max(0, status.total - status.step))
    # A run without worker processes writes its status when a step ends, and a step may take minutes.
    patience = STALE_S if status.processes else max(STALE_S, SILENT_STEPS * pace.get("step_s", 0.0))
    return {
        "state": "silent" if age > patience else "moving" if status.still_s < 1 else "still",
        "step": status.step,
        "total": status.total,
        "pace": pace,
        "bound": bound,
        "seen_s": round(age, 3),
        "still_s": status.still_s,
        "driver": status.driver,
        "processes": {
            name: {"doing": line, "open": (status.processes[name] or {}).get("open")}
            for name, line in who_does_what(status.processes)
        },
        "holds": status.holds,
        "foretold": [str(sentence) for sentence in status.foretold.values()],
        **faults,
    }


def _faults(state: RunState, now: float) -> dict[str, Any]:
    if (last := state.last_fault) is None:
        return {}
    age = round(max(0.0, now - last.time), 3)
    facts = {"counted": str(state.faults), "last": last.as_dict(), "sentence": str(last), "age_s": age}
    return {"faults": facts}


def status_of(run: Path, *, now: float | None = None) -> list[str]:
    """Return the state of a run, line by line.

    Raises:
        ValueError: there is no such run, or it has written nothing yet.
    """
    return lines_of(status_facts(run, now=now))


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts of `status_facts` in words."""
    if facts["state"] == "ended":
        summary, ledger = facts["summary"], facts["summary"].get("trajectories", {})
        counts = [ledger.get(name) for name in ("trained", "produced")]
        parts = [] if facts["step"] is None else [f"{facts['step']} steps"]
        if parts and "seconds" in summary:
            parts = [f"{parts[0]} in {seconds(float(summary['seconds']))}"]
        parts += [] if None in counts else [f"{counts[0]} of {counts[1]} trajectories trained"]
        how = ENDING_WORDS.get(str(summary.get("ended")), "has ended")
        first = f"The run {how}: {', '.join(parts) or 'its summary.json lacks the numbers'}."
        return [first, *_faults_in_words(facts), *_bound_in_words(facts)]
    lines = [f"step {facts['step']} of {facts['total']}; {_moves(facts)}"]
    lines += [f"  {', '.join(pace)}"] if (pace := _pace_in_words(facts["pace"])) else []
    lines += [*_faults_in_words(facts), *_bound_in_words(facts)]
    lines += [f"  {sentence}" for sentence in facts.get("foretold", ())]
    lines += [f"  {name}: {process['doing']}" for name, process in facts["processes"].items()]
    holds = {name: in_words(holding) for name, holding in facts.get("holds", {}).items()}
    return lines + [f"  {name} holds {words}" for name, words in holds.items() if words]


def _bound_in_words(facts: Mapping[str, Any]) -> list[str]:
    return [f"  {facts['bound']}"] if facts.get("bound") else []


def _faults_in_words(facts: Mapping[str, Any]) -> list[str]:
    if "faults" not in facts:
        return []
    faults = facts["faults"]
    return [f"  {faults['counted']}; the last {seconds(faults['age_s'])} ago: {faults['sentence']}"]


def _pace(state: RunState, remaining: int) -> dict[str, float]:
    pace = state.pace
    if pace.step_s is None:
        return {}
    last = {"success": state.success.last, "return": state.returns.last}
    return {
        "env_steps_per_second": pace.env_steps_per_second,
        "step_s": pace.step_s,
        "left_s": remaining * pace.step_s,
        **{name: value for name, value in last.items() if value is not None},
    }


def _pace_in_words(pace: Mapping[str, float]) -> list[str]:
    if not pace:
        return []
    parts = [f"{pace['env_steps_per_second']:.0f} fresh env steps/s", f"{pace['step_s']:.2f} s a step"]
    parts += [f"success {pace['success']:.0%}"] if "success" in pace else []
    return [*parts, f"{clock(pace['left_s'])} left"]


def _moves(facts: Mapping[str, Any]) -> str:
    age = seconds(facts["seen_s"])
    if facts["state"] == "silent":
        return f"the driver (process {facts['driver']}) has written no status for {age}: it has died or hangs"
    if facts["state"] == "moving":
        return f"it moves (seen {age} ago)"
    return f"no activity has ended for {seconds(facts['still_s'])} (seen {age} ago)"


def _reason(records: RunReader) -> str:
    if records.problems:
        return "its records are damaged, or are no files"
    if records.places.facts.exists():
        return (
            "it has only just started, or with async.mode=off its first step has not ended; ask again later"
        )
    return "it is no run directory of rlinf-async, or its workers are being built"


WATCH_INTERVAL_S = 2.0
"""Seconds between two reads of the status; a driver writes it every few seconds."""


def watch(
    run: Path, *, every_s: float = WATCH_INTERVAL_S, wait: Callable[[float], object] = time.sleep
) -> Iterator[dict[str, Any]]:
    """Yield the result of `status_facts` every `every_s` seconds; the last time when the run has ended.

    Raises:
        ValueError: there is no such run, or it has written nothing yet.
    """
    while True:
        facts = status_facts(run)
        yield facts
        if facts["state"] == "ended":
            return
        wait(every_s)


def show_watched(looks: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Show the facts that `watch` yields: in place in a terminal, else one line each, with the time of day.

    An interrupt, with which a user leaves, ends this without an error.
    """
    try:
        if not console.is_terminal:
            for facts in looks:
                console.print(_look_line(facts), soft_wrap=True)
            return
        with Live(console=console, auto_refresh=False) as live:
            for facts in looks:
                live.update(Text("\n".join(lines_of(facts))), refresh=True)
    except KeyboardInterrupt:
        return


def _look_line(facts: Mapping[str, Any]) -> Text:
    first, *rest = lines_of(facts)
    pace = f", {rest[0].strip()}" if facts["pace"] and rest else ""
    return Text(f"{time.strftime('%H:%M:%S')} {first}{pace}")

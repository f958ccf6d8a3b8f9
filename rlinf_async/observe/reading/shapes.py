"""The shapes of a run's records: readers get records of these shapes only.

Each function takes plain data and returns data that a run could have written. Facts of a wrong type are left
out or made empty; None stands for a line without meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlinf_async.observe.events import Status
from rlinf_async.observe.read_files import finite, is_whole, typed

Record = dict[str, Any]
NUMBERS_PER_PIECE = 6
"""The length of the list of numbers that a span has for each piece of a batch."""


def status(content: Record) -> Status | None:
    """Return the content of `status.json`; None without its time and its steps."""
    status = typed(Status, content)
    if status is None or status.step < 0 or status.total < 0:
        return None
    return replace(status, processes={name: _process(facts) for name, facts in status.processes.items()})


def summary(content: Record) -> Record:
    """Return the content of `summary.json`."""
    record = _keep_valid(content, {"steps": _is_count, "seconds": _is_amount, "trajectories": _is_record})
    if "trajectories" in record:
        record["trajectories"] = _ledger(record["trajectories"])
    return record


def facts(content: Record) -> Record:
    """Return the content of `run.json`."""
    checks: Mapping[str, Callable[[Any], bool]] = {
        **dict.fromkeys(("title", "python"), _is_text),
        **dict.fromkeys(("began", "shards_since"), finite),
        **dict.fromkeys(("versions", "levels", "plan"), _is_record),
        "shard_fits": _is_list,
        **dict.fromkeys(("steps", "cores", "horizon", "max_staleness"), _is_count),
        **dict.fromkeys(("max_batch_size", "micro_batch_size"), _is_count),
    }
    return _keep_valid(content, checks)


def span(record: Record) -> Record | None:
    """Return a line of a trace: a span and its facts; None if it has no kind or no times."""
    if not (
        isinstance(record.get("kind"), str) and finite(record.get("began")) and finite(record.get("ended"))
    ):
        return None
    checks: Mapping[str, Callable[[Any], bool]] = {
        **dict.fromkeys(("shard", "number", "batch", "epoch", "place", "version", "size", "step"), is_whole),
        **dict.fromkeys(("shards", "numbers"), _are_whole),
        "pieces": _are_pieces,
        "mode": _is_text,
        "error": _is_text,
    }
    return _keep_valid(record, checks)


def _keep_valid(content: Record, checks: Mapping[str, Callable[[Any], bool]]) -> Record:
    """Return `content` without facts that fail their check; facts without a check stay."""
    return {name: fact for name, fact in content.items() if name not in checks or checks[name](fact)}


def _process(content: Any) -> Record | None:
    """Return the facts that a process reports; None for one that has not answered."""
    if not isinstance(content, dict):
        return None
    spans = content.get("open") if isinstance(content.get("open"), list) else []
    open_spans = [
        one
        for one in spans or []
        if isinstance(one, dict) and isinstance(one.get("kind"), str) and finite(one.get("seconds"))
    ]
    return {**content, "open": open_spans, "ended": _whole(content.get("ended")) or 0}


def _ledger(ledger: Record) -> Record:
    names = ("produced", "trained", "in_flight")
    counts = {name: ledger[name] if _is_count(ledger.get(name)) else None for name in names}
    refusals = ledger.get("refused") if _is_record(ledger.get("refused")) else {}
    return {
        **counts,
        "refused": {name: count for name, count in (refusals or {}).items() if _is_count(count)},
    }


def _whole(value: Any) -> int | None:
    return int(value) if finite(value) else None


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 0


def _is_amount(value: Any) -> bool:
    return finite(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_record(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_whole(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_whole, value))


def _are_pieces(value: Any) -> bool:
    return isinstance(value, list) and all(
        _are_whole(each) and len(each) == NUMBERS_PER_PIECE for each in value
    )

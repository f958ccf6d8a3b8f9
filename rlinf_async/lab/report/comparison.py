"""Two runs or more, side by side in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import yaml

from rlinf_async.core.config_keys import dotted
from rlinf_async.lab.report.content import Table
from rlinf_async.lab.report.formatting import NO_VALUE, duration, number, ratio, share
from rlinf_async.lab.report.measures import Measures
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.lab.report.timelines import ALL_PARTS

Read = Callable[[Measures], float | None]


def _busiest(name: str) -> Read:
    return lambda measures: measures.busiest.get(name)


def _waits(name: str, word: str) -> Read:
    return lambda measures: measures.shares.get(name, {}).get(word)


def _last(pair: tuple[float, float] | None) -> float | None:
    return None if pair is None else pair[1]


COMPARED_FIGURES: Sequence[tuple[str, Read, Callable[[float | None], str]]] = (
    ("steps", lambda m: float(m.steps), number),
    ("fresh env steps/s", lambda m: m.rate, number),
    ("seconds a step (median)", lambda m: m.step_s, number),
    ("overlap efficiency", lambda m: m.efficiency, share),
    *((f"the busiest {part.member} works", _busiest(part.name), share) for part in ALL_PARTS),
    *(
        (f"{part.member}s: {word}", _waits(part.name, word), share)
        for part in ALL_PARTS
        for word in part.words
        if word.startswith(("waiting", "at the"))
    ),
    ("publication", _busiest("publication"), share),
    ("mean batch size", lambda m: m.batch_size, number),
    ("forward pass (mean)", lambda m: m.forward_s, duration),
    ("request to answer (mean)", lambda m: m.ask_s, duration),
    ("staleness (mean)", lambda m: m.staleness, number),
    ("staleness (max)", lambda m: m.staleness_max, number),
    ("refused trajectories", lambda m: None if m.refused is None else float(sum(m.refused.values())), number),
    ("success at the end", lambda m: _last(m.success), share),
    ("return at the end", lambda m: _last(m.returns), number),
)


def verdicts(subjects: Sequence[Subject]) -> list[str]:
    """One sentence for each run after the first: its speed and its success beside those of the first."""
    first, *rest = subjects
    return [sentence for each in rest if (sentence := _verdict(each, first))]


def _verdict(subject: Subject, first: Subject) -> str:
    rate, base = subject.measures.rate, first.measures.rate
    if not rate or not base:
        return ""
    times = f"{rate / base:.0f}" if rate >= 10 * base else f"{rate / base:.2g}"
    speed = f"{subject.label} is {times} times as fast as {first.label}"
    success, before = (share(_last(each.measures.success)) for each in (subject, first))
    if NO_VALUE in (success, before):
        return f"{speed}."
    if success == before:
        return f"{speed}, with the same success at the end, {success}."
    return f"{speed}; its success at the end is {success}, against {before}."


def figures(subjects: Sequence[Subject]) -> Table:
    """A row for each figure that any run has, with the ratio to the first run."""
    first, rest = subjects[0], subjects[1:]
    header = ["", first.label]
    for subject in rest:
        header += [subject.label, "/ first"]
    rows = []
    for name, read, form in COMPARED_FIGURES:
        base = read(first.measures)
        if all(read(subject.measures) is None for subject in subjects):
            continue
        row = [name, form(base)]
        for subject in rest:
            value = read(subject.measures)
            row += [form(value), ratio(value, base)]
        rows.append(row)
    return Table(header=header, rows=rows)


def differing(subjects: Sequence[Subject]) -> Table:
    """The keys of the configs that differ."""
    configs = [dotted(subject.run.config) for subject in subjects]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows = []
    for key in keys:
        values = [_value(config[key]) if key in config else "(absent)" for config in configs]
        if len(set(values)) > 1:
            rows.append((key, *values))
    note = "" if rows else "The configs are the same."
    return Table(
        header=("key", *(subject.label for subject in subjects)), rows=rows, note=note, numbers=False
    )


def _value(value: object) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=10_000)).removesuffix("...\n").strip()

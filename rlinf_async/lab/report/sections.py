"""The sections of a page, each with what its runs have recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import yaml

from rlinf_async.core.config_keys import dotted
from rlinf_async.lab.report import charts, left_out, lines, shard_fit, time_line, uncertainty
from rlinf_async.lab.report.content import Figure, Section, Table
from rlinf_async.lab.report.formatting import NO_VALUE, duration, moment, number, ratio, share
from rlinf_async.lab.report.measures import Measures, Staleness, mean_of
from rlinf_async.lab.report.resources import resources
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.lab.report.timelines import ALL_PARTS, slowest
from rlinf_async.observe.events import FaultCounts
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.read_files import finite

SLOWEST_STEPS = 3
MOST_BARS = 6000
"""Bars in all time lines of a page together: they are most of what makes it large."""
MOST_STEP_ROWS = 500
"""Rows in the table of steps."""


def sections(subjects: Sequence[Subject]) -> list[Section]:
    """In the order of the page; those that nothing is known for say so."""
    comparison_section = [_comparison(subjects)] if len(subjects) > 1 else []
    return [
        *comparison_section,
        _shares(subjects),
        _time_lines(subjects),
        _batches(subjects),
        _staleness(subjects),
        _over_time(subjects),
        _learning(subjects),
        _health(subjects),
        *(each for each in (left_out.section(subjects), resources(subjects)) if each.shows),
        *([faults(subjects)] if any(subject.run.faults for subject in subjects) else []),
    ]


def _comparison(subjects: Sequence[Subject]) -> Section:
    return Section(
        id="comparison",
        nav="Comparison",
        title="Comparison",
        sentence="The same figures of every run with their ratio to the first, and what was set differently.",
        tables=[compared_figures(subjects), differing_keys(subjects)],
    )


def _shares(subjects: Sequence[Subject]) -> Section:
    with_timelines = [subject for subject in subjects if subject.window is not None and subject.timelines]
    return Section(
        id="shares",
        nav="Work and waits",
        title="Who works, and who waits for what",
        sentence="How every shard and rank has spent the time from the end of the first step to that of the "
        "last. Orange is work, grey is waiting, blue is moving data or weights, and the rest is pale.",
        legend=charts.legend(with_timelines, lambda subject: subject.window),
        figures=[charts.shares(subject, subject.window) for subject in with_timelines if subject.window],
        remarks=[remark for subject in subjects if (remark := _streaming_remark(subject))],
        absent=_without(subjects, with_timelines, "no trace of shards and ranks"),
    )


def _streaming_remark(subject: Subject) -> str:
    """Say what level 3 did before batches were complete; empty where it was off."""
    parts = [
        f"{share(mean)} of the {part}"
        for name, part in (("train/anchored", "anchors and values"), ("train/streamed", "gradients"))
        if (mean := mean_of(subject.run.metrics[1:], name)) is not None
    ]
    if not parts:
        return ""
    gradients = any("gradients" in each for each in parts)
    but = "" if gradients else " All gradients waited for the whole batch."
    words = " and ".join(parts)
    return f"{subject.label}: of a batch, level 3 made {words} before the last piece had come.{but}"


def _time_lines(subjects: Sequence[Subject]) -> Section:
    with_timelines = [subject for subject in subjects if len(subject.steps) > 1 and subject.timelines]
    count = SLOWEST_STEPS if len(subjects) == 1 else 1
    pairs = [(subject, step) for subject in with_timelines for step in slowest(subject.steps, count)]
    remarks = dict.fromkeys(remark for pair in pairs if (remark := time_line.remark(*pair)))
    return Section(
        id="time-lines",
        nav="Slowest steps",
        title="The slowest steps",
        sentence="What went on in the steps that took longest, the first apart; a row for each shard and "
        "rank. What a bar is, it says under the pointer. The whole run is in the trace: rlinf-async trace "
        "writes it for ui.perfetto.dev.",
        legend=time_line.legend(pairs),
        figures=[
            time_line.time_line(subject, step, most_bars=MOST_BARS // len(pairs)) for subject, step in pairs
        ],
        remarks=list(remarks),
        absent=_without(subjects, with_timelines, "no trace of two steps"),
    )


def _batches(subjects: Sequence[Subject]) -> Section:
    alone = len(subjects) == 1
    figures = [charts.batch_sizes(subjects), charts.queue_waits(subjects)]
    figures += [charts.round_trips(subject, alone=alone) for subject in subjects]
    return Section(
        id="batches",
        nav="Batches",
        title="Batches, queue and answers",
        sentence="How many samples shared a forward pass, how long requests queued for it, and how much of "
        "the time from a shard's request to its answer is the forward pass itself.",
        figures=[figure for figure in figures if figure is not None],
        remarks=[words for subject in subjects if (words := shard_fit.remark(subject))],
        absent=[] if any(figures) else ["No forward pass was recorded."],
    )


def _staleness(subjects: Sequence[Subject]) -> Section:
    ages = [(subject, Staleness.of(subject.run.spans)) for subject in subjects]
    with_ages = [(subject, ages_of_run) for subject, ages_of_run in ages if ages_of_run.total]
    refused = [(s, s.measures.refused) for s in subjects if s.measures.refused is not None]
    some = [(subject, counts) for subject, counts in refused if counts]
    figures: list[Figure] = [charts.staleness(with_ages)] if with_ages else []
    figures += [charts.refusals(some, subjects)] if some else []
    return Section(
        id="staleness",
        nav="Staleness",
        title="Staleness",
        sentence="How many policy versions lay between the oldest action of a trajectory and its training, "
        "and whether they passed in flight, while it was collected, or in the queue.",
        figures=figures,
        remarks=["No trajectory was refused."] if refused and not some else [],
        absent=_without(subjects, [subject for subject, _ in with_ages], "no trace of trained trajectories"),
    )


def _over_time(subjects: Sequence[Subject]) -> Section:
    figures = lines.speed(subjects)
    return Section(
        id="over-time",
        nav="Over time",
        title="Speed and load over time",
        sentence="What every step has reported. The first step also fills the pipeline.",
        figures=figures,
        absent=[] if figures else ["No two steps have been reported."],
    )


def _health(subjects: Sequence[Subject]) -> Section:
    figures = lines.health(subjects)
    return Section(
        id="health",
        nav="Learning health",
        title="Learning health",
        sentence="What the learner has measured of its own training, step by step.",
        figures=figures,
        absent=[] if figures else ["The learner has reported no measures of its training."],
    )


def _learning(subjects: Sequence[Subject]) -> Section:
    figures = lines.outcomes(subjects)
    return Section(
        id="learning",
        nav="Learning",
        title="Success and return",
        sentence="What the episodes of the run have achieved, over the data and over the time that it took.",
        figures=figures,
        absent=[] if figures else ["No episode has been reported."],
    )


def _without(subjects: Sequence[Subject], subjects_with: Sequence[Subject], what: str) -> list[str]:
    lacking = [subject.label for subject in subjects if subject not in subjects_with]
    if not lacking:
        return []
    return [f"There is {what}." if len(subjects) == 1 else f"There is {what} of {', '.join(lacking)}."]


def _metric(name: str, form: Callable[[float | None], str]) -> Callable[[Mapping[str, float]], str]:
    return lambda line: form(line.get(name))


STEP_COLUMNS: Sequence[tuple[str, Callable[[Mapping[str, float]], str]]] = (
    ("step", lambda line: f"{line['step']:.0f}"),
    ("seconds", _metric("async/step_seconds", lambda value: NO_VALUE if value is None else f"{value:.2f}")),
    ("env steps/s", _metric("async/env_steps_per_second", number)),
    ("env", _metric("async/busy/env", share)),
    ("inference", _metric("async/busy/inference", share)),
    ("learner", _metric("async/busy/learner", share)),
    ("publication", _metric("async/publication_seconds", duration)),
    ("staleness", _metric("async/staleness/mean", number)),
    ("batch", _metric("async/batch/size/mean", number)),
    ("success", _metric("env/success_once", share)),
    ("return", _metric("env/return", number)),
)


def step_table(subject: Subject) -> Table | None:
    """A row for each step; of very many, evenly chosen ones."""
    reports = subject.run.metrics
    if not reports:
        return None
    every = -(-len(reports) // MOST_STEP_ROWS)
    return Table(
        header=[name for name, _ in STEP_COLUMNS],
        rows=[[read(line) for _, read in STEP_COLUMNS] for line in reports[::every]],
        note="Env, inference and learner are mean busy shares."
        + (f" One step in {every} is shown." if every > 1 else ""),
    )


def config_text(subject: Subject) -> str:
    """The resolved config, as YAML."""
    return str(yaml.safe_dump(subject.run.config, sort_keys=False, width=100)) if subject.run.config else ""


def versions(subject: Subject) -> list[tuple[str, str]]:
    """Return the versions of what ran, and the time."""
    facts = subject.run.facts
    releases = facts.get("versions")
    pairs = (
        [(str(name), str(version)) for name, version in releases.items()]
        if isinstance(releases, dict)
        else []
    )
    if "python" in facts:
        pairs.append(("python", str(facts["python"])))
    if "began" in facts:
        pairs.append(("began", moment(facts["began"])))
    return pairs


Read = Callable[[Measures], float | None]


def _busiest(name: str) -> Read:
    return lambda measures: measures.busiest.get(name)


def _waits(name: str, word: str) -> Read:
    return lambda measures: measures.shares.get(name, {}).get(word)


def _last(pair: tuple[float, float] | None) -> float | None:
    return None if pair is None else pair[1]


COMPARED_FIGURES: Sequence[tuple[str, Read, Callable[[float | None], str]]] = (
    ("steps", lambda m: float(m.steps), number),
    ("fresh env steps a step (mean)", lambda m: m.env_steps, number),
    ("seconds a step (mean)", lambda m: m.mean_step_s, number),
    ("fresh env steps/s, the first over the second", lambda m: m.rate, number),
    ("seconds a step (median)", lambda m: m.step_s, number),
    ("cores that the run kept busy", lambda m: None if m.load is None else m.load.own, number),
    ("cores that other work kept busy", lambda m: None if m.load is None else m.load.others, number),
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
    if not subject.measures.rate or not first.measures.rate:
        return ""
    speed = _speed(subject, first) + _other_work(subject, first)
    success, before = (share(_last(each.measures.success)) for each in (subject, first))
    if NO_VALUE in (success, before):
        return speed
    if success == before:
        return f"{speed} Success at the end is the same, {success}."
    return f"{speed} Its success at the end is {success}, against {before}."


def _speed(subject: Subject, first: Subject) -> str:
    found = uncertainty.times(subject.run.metrics, first.run.metrics)
    if found is None:
        return (
            f"Too few steps to say how fast {subject.label} is beside {first.label}: "
            f"{subject.measures.steps} and {first.measures.steps}, where each needs "
            f"{uncertainty.LEAST_STEPS}."
        )
    speed = f"{subject.label} is {found.in_words()} times as fast as {first.label}"
    spread = "95 % by the spread over steps"
    return f"{speed} ({spread})." if found.differs else f"{speed} ({spread}), which shows no difference."


LOAD_DIFFERENCE = 0.25
"""Cores: smaller differences of what other work kept busy are not told."""


def _other_work(subject: Subject, first: Subject) -> str:
    """Return a sentence where other work kept different numbers of cores busy, or where that is unknown."""
    loads = [each.measures.load for each in (subject, first)]
    if loads[0] is None or loads[1] is None:
        return " What else their machines did was not recorded of both."
    own, before = (load.others for load in loads if load is not None)
    if abs(own - before) < LOAD_DIFFERENCE:
        return ""
    return f" Other work kept {own:.2g} cores busy beside it, {before:.2g} beside {first.label}."


def compared_figures(subjects: Sequence[Subject]) -> Table:
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


def differing_keys(subjects: Sequence[Subject]) -> Table:
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


MOST_FAULTS = 200
FAULT_COLUMNS = ("after", "process", "shard", "what", "error", "what was done", "lost", "took")


def faults(subjects: Sequence[Subject]) -> Section:
    """A table for each run in which something has failed."""
    faulty = [subject for subject in subjects if subject.run.faults]
    return Section(
        id="faults",
        nav="Faults",
        title="What has failed, and what was done about it",
        sentence="Every fault: who has failed, what it cost, and how long it took until work went on. Of "
        "errors only the types are shown; failures.jsonl in the run directory has their words.",
        tables=[_fault_table(subject, alone=len(faulty) == 1) for subject in faulty],
    )


def _fault_table(subject: Subject, *, alone: bool) -> Table:
    faults, began = subject.run.faults, subject.run.facts.get("began")
    counts, count = FaultCounts.of(faults), min(len(faults), MOST_FAULTS)
    left_out = f" The last {count} are shown." if counts.kinds.total() > count else ""
    return Table(
        header=FAULT_COLUMNS,
        rows=[_fault_row(fault, began) for fault in faults[-MOST_FAULTS:]],
        note=f"{'' if alone else f'{subject.label}: '}{counts}.{left_out}",
        numbers=False,
    )


def _fault_row(fault: Fault, began: object) -> list[str]:
    after = duration(fault.time - began) if finite(began) and fault.time >= began else NO_VALUE
    took = NO_VALUE if fault.seconds is None else duration(fault.seconds)
    shard = NO_VALUE if fault.shard is None else str(fault.shard)
    kind = fault.error.partition(":")[0]
    error = kind if kind.isidentifier() else NO_VALUE
    return [after, fault.process, shard, fault.what, error, fault.action, fault.lost or NO_VALUE, took]

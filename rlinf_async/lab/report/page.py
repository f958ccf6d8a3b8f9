"""The page: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlinf_async.extras import pip_install
from rlinf_async.lab.outputs import check_replaceable
from rlinf_async.lab.report import redact
from rlinf_async.lab.report.formatting import NO_VALUE, duration, ends, number, share
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.run_view import Subject, subjects
from rlinf_async.lab.report.sections import config_text, sections, step_table, verdicts, versions
from rlinf_async.observe.events import FaultCounts
from rlinf_async.observe.files import make_directory, write_whole

REQUIRED_PACKAGES = ("jinja2",)
NO_BOUND_SENTENCE = "Nothing has been reported yet that says what bounds this run."
STOCK_SENTENCE = "RLinf's own script has run here, and has left nothing that says what bounds it."
PAGE_MARK = b'<p class="kind">rlinf-async report</p>'
"""A part of the template, which every page has."""
TEMPLATE_FOLDER = Path(__file__).parent / "template"


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write a page about one run, or about several side by side, and return its path.

    Raises:
        ValueError: a path is no run directory, the page cannot be written or would replace something else, or
            a package is not installed; the message has the remedy.
    """
    if not runs:
        raise ValueError("give at least one run directory")
    absent = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if absent:
        raise ValueError(f"the report needs {' and '.join(absent)}: {pip_install('report')}")
    _check_place(out)
    html = render([redact.run(RunFiles.read(run)) for run in runs])
    try:
        make_directory(out.parent, private=False)
        write_whole(out, html.encode(errors="replace"), private=False)
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}") from error
    return out


def _check_place(out: Path) -> None:
    """Check, before runs are read, that the page can be written to `out` and replaces a page at most."""
    try:
        if out.is_dir():
            raise ValueError(f"{out} is a directory; name a file in it, such as {out / 'report.html'}")
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}") from error
    check_replaceable(out, PAGE_MARK)


def render(runs: Sequence[RunFiles]) -> str:
    """Return the page about runs; private texts are removed first."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    views = subjects(runs)
    every = sections(views)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        title=_title([subject.label for subject in views]),
        verdicts=verdicts(views),
        headlines=[_headline(subject) for subject in views],
        sections=[section for section in every if section.shows],
        empty=[section.title for section in every if not section.shows],
    )


def _title(labels: Sequence[str]) -> str:
    if len(labels) > 3:
        return f"{len(labels)} runs: {', '.join(labels[:3])}, ..."
    return " and ".join([", ".join(labels[:-1]), labels[-1]] if len(labels) > 1 else labels)


def _headline(subject: Subject) -> dict[str, Any]:
    """Return the texts about a run for the head and the end of the page."""
    measures = subject.measures
    diagnosis = measures.diagnosis
    return {
        "label": subject.label,
        "title": str(subject.run.facts.get("title", "")),
        "sentence": _sentence(subject),
        "tiles": _tiles(subject),
        "advice": subject.advice,
        "full_cores": diagnosis is not None and diagnosis.is_machine,
        "faults": _fault_words(subject),
        "knows": diagnosis is not None,
        "traced": any(measures.shares.values()),
        "missing": subject.run.missing,
        "steps": step_table(subject),
        "config": config_text(subject),
        "versions": versions(subject),
    }


def _sentence(subject: Subject) -> str:
    if subject.run.stock:
        return STOCK_SENTENCE
    diagnosis = subject.measures.diagnosis
    return NO_BOUND_SENTENCE if diagnosis is None else diagnosis.sentence()


def _fault_words(subject: Subject) -> str:
    """Return a sentence on the faults of a run and their cost; "" without faults."""
    counts = FaultCounts.of(subject.run.faults)
    if not counts.kinds:
        return ""
    took = f" Until work went on they took {duration(counts.seconds)} in all." if counts.seconds else ""
    return f"{counts}.{took}"


def _tiles(subject: Subject) -> list[tuple[str, str, str]]:
    """Return (name, number, explanation) of each tile."""
    measures = subject.measures
    total = subject.run.facts.get("steps")
    of = f" of {total}" if isinstance(total, int) else ""
    bound = subject.run.facts.get("max_staleness")
    bound_words = f", {bound} allowed" if isinstance(bound, int) else ""
    tiles = [
        ("fresh env steps/s", number(measures.rate), "trained for the first time, per second"),
        ("overlap efficiency", share(measures.efficiency), "time of the busiest part over time taken"),
        ("steps", f"{measures.steps}{of}", "of the learner, each a global batch"),
        ("step time", duration(measures.step_s), "median"),
        ("staleness", number(measures.staleness_max), f"versions at most{bound_words}"),
        ("batch size", number(measures.batch_size), "mean of forward passes"),
        ("publication", share(measures.busiest.get("publication")), "of the learner's time"),
        ("success", ends(measures.success, percent=True), "first to last steps"),
    ]
    return [] if subject.run.stock else [tile for tile in tiles if tile[1] != NO_VALUE]

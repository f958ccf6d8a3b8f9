import os
import re

import pytest
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.lab.report import sections
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.run_view import subjects
from rlinf_async.lab.report.time_line import time_line
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.load import Load
from rlinf_async.observe.reading.status import status_of
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.state import Diagnosis, RunState
from tests.lab.report.making import CONFIG, FACTS, TRACE, metrics, write_run

pytest.importorskip("jinja2", reason="the report needs it: pip install 'rlinf-async[report]'")

from rlinf_async.lab.report.page import write_report

TITLES = (
    "Who works, and who waits for what",
    "The slowest steps",
    "Batches, queue and answers",
    "Staleness",
    "Speed and load over time",
    "Success and return",
    "Learning health",
)


def page(directory, *runs):
    return write_report(runs, directory / "page.html").read_text()


def headings(html):
    return re.findall(r"<h2>(.*?)</h2>", html)


def test_a_page_has_the_sentence_the_figures_and_every_section(tmp_path):
    html = page(tmp_path, write_run(tmp_path))
    assert "The learner bounds this run: the busiest rank works 90% of the time." in html
    assert [title for title in TITLES if title not in headings(html)] == []
    assert "<code>cluster.component_placement.actor</code> from <b>1 rank</b> to <b>2 ranks</b>" in html
    assert "What is missing" not in html
    assert "Not on this page" not in html


def test_a_page_says_what_level_3_did_before_batches_were_complete(tmp_path):
    ahead = {"train/anchored": 0.5, "train/streamed": 0.25}
    lines = [metrics(step, **(ahead if step > 1 else {})) for step in (1, 2, 3)]
    html = page(tmp_path, write_run(tmp_path, lines=lines))
    assert "level 3 made 50% of the anchors and values and 25% of the gradients before the last piece" in html
    assert "All gradients waited" not in html
    lines = [metrics(step, **({"train/anchored": 0.5} if step > 1 else {})) for step in (1, 2, 3)]
    deferred = page(tmp_path, write_run(tmp_path, name="deferred", lines=lines))
    assert "before the last piece had come. All gradients waited for the whole batch." in deferred
    assert "level 3 made" not in page(tmp_path, write_run(tmp_path, name="without"))


def test_every_figure_has_its_numbers_as_a_table_too(tmp_path):
    html = page(tmp_path, write_run(tmp_path))
    figures = re.findall(r"<figure.*?</figure>", html, re.DOTALL)
    assert len(figures) > 8
    assert all("<table" in figure for figure in figures)
    assert '<th scope="row">shard 0</th><td>40%</td>' in html


def test_a_page_loads_nothing_and_has_no_script(tmp_path):
    html = page(tmp_path, write_run(tmp_path))
    assert "<script" not in html
    assert not re.search(r"""<(?:img|iframe|link|source|object)[^>]*(?:src|href|data)\s*=""", html)
    assert not re.search(r"https?://|@import|url\(", html)
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in html


def test_a_page_of_three_long_runs_is_below_a_megabyte(tmp_path):
    steps = [("step", 10 + n / 100, 10 + n / 100 + 0.009, {"shard": n % 30}) for n in range(2000)]
    forwards = [("forward", 10 + n / 100, 10 + n / 100 + 0.004, {"size": 1 + n % 64}) for n in range(1999)]
    trace = {**TRACE, "env worker 0": steps, "inference rank 0": forwards}
    lines = [metrics(step) for step in range(1, 1201)]
    runs = [write_run(tmp_path, trace=trace, lines=lines, name=name) for name in ("a", "b", "c")]
    assert write_report(runs, tmp_path / "page.html").stat().st_size < 1e6


def test_many_spans_do_not_make_it_larger(tmp_path):
    steps = [("step", 10 + n / 100, 10 + n / 100 + 0.009, {"shard": n % 30}) for n in range(2000)]
    trace = {**TRACE, "env worker 0": steps}
    (subject,) = subjects([RunFiles.read(write_run(tmp_path, trace=trace))])
    figure = time_line(subject, subject.steps[-1], most_bars=50)
    assert figure.drawing.count("M") == 50
    assert "shortest bars are left out" in figure.note
    assert "of those that are many" in page(tmp_path, write_run(tmp_path, trace=trace, name="again"))


def test_nothing_private_gets_into_a_page(tmp_path):
    config = {**CONFIG, "wandb": {"api_key": "abc123secret"}, "note": "see /data/alice/notes and ~/more"}
    facts = {"title": "run by /home/alice/bin/train", "versions": {"rlinf": "/opt/alice/rlinf"}}
    html = page(tmp_path, write_run(tmp_path, config=config, facts=facts))
    assert "alice" not in html
    assert "abc123secret" not in html
    assert str(tmp_path) not in html
    assert "api_key: hidden" in html


def test_what_a_config_says_cannot_become_html(tmp_path):
    evil = "</script><script>alert(1)</script><!--"
    run = write_run(tmp_path, config={"a": evil}, name="<b>&run")
    html = page(tmp_path, run, run)
    assert evil not in html
    assert "<script>alert" not in html
    assert "<b>&run" not in html


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"trace": {}}, "There is no trace"),
        ({"lines": []}, "No step has been reported"),
        ({"lines": [], "trace": {}, "summary": {}}, "No step has been reported"),
        ({"config": {}, "facts": {}}, "advice assumes the defaults"),
        ({"config": {}, "facts": {}, "lines": [], "summary": {}}, "There is no readable run.json"),
        ({"lines": [metrics(1)], "trace": {"driver": []}, "summary": {}}, "There is no summary.json"),
        (
            {"lines": [{"step": 1}, {"step": 2}]},
            "Nothing has been reported yet that says what bounds this run.",
        ),
    ],
)
def test_a_page_of_part_of_the_records_says_what_is_missing(tmp_path, parts, words):
    assert words in page(tmp_path, write_run(tmp_path, **parts))


def test_sections_that_cannot_be_shown_are_named(tmp_path):
    html = page(tmp_path, write_run(tmp_path, lines=[], trace={}))
    assert f"Not on this page, for lack of records: {'; '.join(TITLES)}." in html
    assert not set(headings(html)) & set(TITLES)


def test_a_run_of_rlinfs_own_has_a_page_that_says_so(tmp_path):
    (tmp_path / "stock" / "tensorboard").mkdir(parents=True)
    html = page(tmp_path, tmp_path / "stock")
    assert "This is a run of RLinf&#39;s own script" in html
    assert "What to try" not in html


def test_two_runs_are_compared_with_their_ratio_to_the_first(tmp_path):
    one = write_run(tmp_path, name="one")
    lines = [metrics(step, async__env_steps=640.0) for step in (1, 2, 3)]
    config = {**CONFIG, "async": {"mode": "train"}, "runner": {"logger": {"log_path": "/elsewhere"}}}
    two = write_run(tmp_path, name="two", lines=lines, config=config)
    html = page(tmp_path, one, two)
    assert "the first over the second</th><td>32</td><td>64</td><td>2.00x</td>" in html
    assert "fresh env steps a step (mean)</th><td>320</td><td>640</td><td>2.00x</td>" in html
    assert "seconds a step (mean)</th><td>10</td><td>10</td><td>1.00x</td>" in html
    assert '<th scope="row">async.mode</th><td>full</td><td>train</td>' in html
    assert "Too few steps to say how fast two is beside one: 3 and 3, where each needs 9." in html
    assert "Success at the end is the same, 20%." in html
    assert "runner.logger.log_path" not in html.split("Config and versions")[0]
    assert [title for title in TITLES if title not in headings(html)] == []


def test_runs_of_which_one_has_no_records_are_compared_all_the_same(tmp_path):
    html = page(
        tmp_path, write_run(tmp_path), write_run(tmp_path, name="bare", lines=[], trace={}, summary={})
    )
    assert "There is no trace of shards and ranks of bare." in html


def loaded(others):
    """Metrics of twelve steps, beside other work that kept so many cores busy."""
    load = {"async/load/own_cores": 1.0, "async/load/other_cores": others, "async/load/cores": 16.0}
    return [metrics(step, **{"async/step_seconds": 10.0 + step % 3, **load}) for step in range(1, 13)]


def test_a_run_that_is_slower_and_succeeds_less_is_said_to_be_so_before_anything_else(tmp_path):
    slower = [
        {**line, "async/env_steps": 240.0, "env/success_once": 0.1, "async/load/other_cores": 2.0}
        for line in loaded(0.5)
    ]
    runs = [
        write_run(tmp_path, name=name, lines=lines) for name, lines in (("one", loaded(0.5)), ("two", slower))
    ]
    head = page(tmp_path, *runs).split("<article>")[0]
    found = re.search(
        r"two is 0\.75 \[(0\.\d\d), (0\.\d\d)\] times as fast as one \(95 % by the spread", head
    )
    assert float(found[1]) < 0.75 < float(found[2])
    assert "Other work kept 2 cores busy beside it, 0.5 beside one." in head
    assert re.search(r"Its success at the end is 10%, against \d+%\.", head)
    assert "times as fast" not in page(tmp_path, tmp_path / "one")


def test_runs_that_do_not_differ_are_said_not_to(tmp_path):
    runs = [write_run(tmp_path, name=name, lines=loaded(0.0)) for name in ("one", "two")]
    said = "times as fast as one (95 % by the spread over steps), which shows no difference."
    assert said in page(tmp_path, *runs)


def test_where_the_cores_are_full_every_view_names_the_machine_and_whose_work_fills_it(tmp_path):
    facts = {**FACTS, "cores": 2, "versions": {"torch": "2.13.0+cpu"}}
    load = {"async/load/own_cores": 1.3, "async/load/other_cores": 0.6, "async/load/cores": 2.0}
    run = write_run(tmp_path, facts=facts, lines=[metrics(step, **load) for step in (1, 2, 3)])
    said = (
        "The machine bounds this run: 1.9 of 2 processor cores are busy, 1.3 by this run and 0.6 by other "
        "work; the busiest rank works 90% of the time."
    )
    html = page(tmp_path, run)
    assert said in html
    assert "would share the same cores" in html
    assert f"  {said}" in status_of(run)


@pytest.mark.parametrize("others", [0.0, 15.5])
def test_terminal_status_and_report_name_the_same_bound_of_a_run(tmp_path, others):
    lines = loaded(others)
    run = write_run(tmp_path, lines=lines)
    (subject,) = subjects([RunFiles.read(run)])
    # Every step has the same shares and loads: so have the means over steps.
    busiest = {part: lines[1][f"async/busiest/{part}"] for part in ("env", "inference", "learner")}
    said = Diagnosis.of(busiest, Load.from_metrics(lines[1])).sentence()
    terminal = RunState.of(map(StepReport.from_metrics, lines), on_cpu=False)
    assert terminal.bound.sentence() == said
    assert subject.measures.diagnosis.sentence() == said
    assert f"  {said}" in status_of(run)


def test_runs_in_directories_of_the_same_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / place, name="mine") for place in ("a", "b")]
    assert [subject.label for subject in subjects([RunFiles.read(run) for run in runs])] == [
        "mine",
        "mine (2)",
    ]


def test_what_has_failed_has_a_section_with_the_types_of_errors_and_not_their_words(tmp_path):
    run = write_run(tmp_path / "run")
    assert "What has failed" not in page(tmp_path, run)
    facts = {"process": "env worker 0", "what": "env failed", "action": "environments built anew"}
    error = "ValueError: <b>/home/somebody/secret</b>"
    RunDir(run).record(Fault(**facts, error=error, shard=2, lost="a rollout for batch 3", seconds=2.5))
    RunDir(run).record(Fault(**facts, error="no identifier"))
    html = page(tmp_path, run)
    assert "What has failed" in html
    assert "2 faults: env failed 2." in html
    assert "Until work went on they took 2.5 s in all." in html.split('id="shares"')[0]
    row = re.search(r"<tr>[^#]*?env worker 0.*?</tr>", html, re.DOTALL)[0]
    cells = re.sub(r"<[^>]*>", "|", row)
    shown = ("2", "env failed", "ValueError", "environments built anew", "a rollout for batch 3", "2.5 s")
    assert [cell for cell in shown if cell not in cells] == []
    assert "somebody" not in html
    assert "no identifier" not in html


def test_very_many_steps_are_thinned_out(tmp_path):
    run = write_run(tmp_path, lines=[metrics(step) for step in range(1, 1202)])
    (subject,) = subjects([RunFiles.read(run)])
    table = sections.step_table(subject)
    assert len(table.rows) == 401
    assert "One step in 3 is shown." in table.note


def report(*arguments):
    return CliRunner().invoke(cli.app, ["report", *map(str, arguments)])


def test_the_command_writes_report_html_unless_told_otherwise(tmp_path, monkeypatch):
    run = write_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert report(run).exit_code == 0
    assert (tmp_path / "report.html").is_file()
    assert report(run, run, "-o", "new/both.html").exit_code == 0
    assert (tmp_path / "new" / "both.html").is_file()


@pytest.mark.parametrize(
    ("run", "output", "words"),
    [
        ("absent", "page.html", "does not exist"),
        ("a-file", "page.html", "is a file"),
        ("empty", "page.html", "is no run directory"),
        ("mine", "empty", "is a directory; name a file in it"),
        ("mine", "a-file/page.html", "cannot be written"),
        ("mine", "x" * 300, "cannot be written: File name too long"),
    ],
)
def test_a_wrong_place_is_one_line_and_exit_status_one(tmp_path, run, output, words):
    write_run(tmp_path)
    (tmp_path / "a-file").write_text("x")
    (tmp_path / "empty").mkdir()
    result = report(tmp_path / run, "-o", tmp_path / output)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", "")
    assert "Traceback" not in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everywhere")
def test_what_may_not_be_read_is_said(tmp_path):
    run = write_run(tmp_path)
    run.chmod(0)
    result = report(run, "-o", tmp_path / "page.html")
    run.chmod(0o755)
    assert "cannot be read: Permission denied" in result.output


def test_the_packages_that_are_needed_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("rlinf_async.lab.report.page.REQUIRED_PACKAGES", ("jinja2", "no_such_package"))
    result = report(write_run(tmp_path))
    assert "the report needs no_such_package: pip install 'jinja2>=3.1'" in result.output


def test_a_link_at_the_place_of_the_page_is_not_written_through(tmp_path):
    (tmp_path / "precious").write_text("all my work")
    (tmp_path / "page.html").symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="it is a symbolic link"):
        write_report([write_run(tmp_path)], tmp_path / "page.html")
    assert (tmp_path / "precious").read_text() == "all my work"

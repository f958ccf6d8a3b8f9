"""What a run prints in terminals of several widths, in a pipe and in a notebook."""

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.pace import Pace, clock
from rlinf_async.observe.state import RunState
from tests.making import spread, step_report

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def report(step, **changes):
    staleness = spread(1.0)
    usual = {"total": 30, "seconds": 10.0, "env_steps": 100, "success": 0.5, "episode_return": 0.25}
    usual |= {"staleness": staleness, "batch_size": staleness, "batch_wait": staleness}
    return step_report(step, busy={"env": 1.0, "inference": 0.3, "learner": 1.0}, **usual | changes)


def shown(reports, *, width, terminal=True, encoding="utf-8"):
    """What is printed, without escapes: the lines of the steps, and the last state of the bar."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    console = Console(file=file, width=width, force_terminal=terminal, highlight=False, legacy_windows=False)
    display = RunDisplay(console)
    display.start("a title with [brackets]", step=0, total=reports[0].total)
    state = RunState()
    for each in reports:
        state.add(each)
        display.step(each, state)
    bar = ""
    if display._progress is not None:
        aside = Console(file=io.StringIO(), width=width, force_terminal=True)
        aside.print(display._progress.get_renderable())
        bar = ESCAPES.sub("", aside.file.getvalue()).rstrip("\n")
    display.stop()
    file.flush()
    text = ESCAPES.sub("", raw.getvalue().decode(encoding)).replace("\r", "\n")
    return text, bar


def rows(text):
    return [line for line in text.splitlines() if re.search(r"\s\d+/\d+\s", line) and "\u2501" not in line]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_step_is_one_line_and_the_bar_another_in_terminals_of_any_width(width):
    text, bar = shown([report(step) for step in (1, 2, 3)], width=width)
    lines = rows(text)
    assert [line.split()[0] for line in lines] == ["1/30", "2/30", "3/30"]
    assert all(len(line) < width for line in lines)
    assert "\n" not in bar
    assert len(bar) <= width
    assert "3/30" in bar
    assert re.search(r"\d:\d\d left", bar)
    assert "success" in bar


def test_eighty_columns_have_what_matters_and_two_hundred_have_more():
    (narrow, _), (wide, _) = (shown([report(1)], width=width) for width in (80, 200))
    everywhere = (
        "step",
        "return",
        "success",
        "env steps/s",
        "busy env/inf/learn",
        "stale",
        "batch",
        "seconds",
    )
    for name in everywhere:
        assert name in narrow
        assert name in wide
    for name in ("busiest", "batch wait", "publication", "elapsed"):
        assert name not in narrow
        assert name in wide


def test_many_steps_are_counted_in_one_line_too():
    text, _ = shown([report(99_999, total=100_000)], width=80)
    (line,) = rows(text)
    assert line.split()[0] == "99999/100000"
    assert len(line) < 80


def test_a_pipe_has_a_line_for_each_step_with_the_time_of_day_and_the_time_left():
    text, _ = shown([report(step) for step in (1, 2, 3)], width=120, terminal=False)
    title, header, *lines = text.splitlines()
    assert title == "a title with [brackets]"
    assert header.split()[:3] == ["time", "step", "left"]
    assert len(lines) == 3
    assert re.fullmatch(r"\d\d:\d\d:\d\d", lines[2].split()[0])
    assert lines[2].split()[1:3] == ["3/30", "4:30"]


def test_a_file_that_takes_only_ascii_gets_only_ascii():
    reports = [report(step, env_steps=100 * step) for step in (1, 2, 3, 4)]
    text, _ = shown(reports, width=120, terminal=False, encoding="ascii")
    assert " + " in rows(text)[-1]


def test_a_terminal_that_has_become_wider_gets_the_columns_that_now_fit():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True)
    display = RunDisplay(console)
    display.start("title", step=0, total=9)
    display.step(report(1, total=9), RunState())
    console.width = 200
    display.step(report(2, total=9), RunState())
    display.step(report(3, total=9), RunState())
    display.stop()
    assert file.getvalue().count("env steps/s") == 2
    assert file.getvalue().count("publication") == 1


NOTEBOOK = """
import builtins, warnings
warnings.simplefilter("error")
class ZMQInteractiveShell:
    pass
class Shell(ZMQInteractiveShell):
    __module__ = "ipykernel.zmqshell"
ZMQInteractiveShell.__module__ = "ipykernel"
builtins.get_ipython = lambda: ZMQInteractiveShell()
from rich.console import Console
assert Console().is_jupyter
from tests.observe.test_display import report
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.state import RunState
display = RunDisplay()
display.start("title", step=0, total=30)
state = RunState()
state.add(report(1))
display.step(report(1), state)
display.stop()
"""


def test_a_notebook_gets_plain_lines_and_no_widget():
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    title, _, line = done.stdout.splitlines()
    assert title == "title"
    assert "1/30" in line


def test_the_time_left_is_that_of_the_steps_after_the_first():
    pace = Pace()
    pace.add(report(1, seconds=100.0))
    assert pace.left(29) == 2900.0
    pace.add(report(2, seconds=4.0))
    pace.add(report(3, seconds=6.0))
    assert pace.left(27) == 27 * 5.0
    assert pace.elapsed == 110.0
    assert Pace().left(29) is None


@pytest.mark.parametrize(("env_steps", "trend"), [(100, 0), (104, 0), (120, 1), (80, -1)])
def test_throughput_rises_or_falls_against_the_mean_of_the_steps_before(env_steps, trend):
    pace = Pace()
    for step, steps in ((1, 1), (2, 90), (3, 110), (4, env_steps)):
        pace.add(report(step, env_steps=steps))
    assert pace.trend == trend


def test_the_curve_of_many_steps_has_few_points_and_their_means():
    pace = Pace()
    for step in range(24):
        pace.add(report(step + 1, success=float(step % 2)))
    assert pace.curve() == [0.5] * 12


def test_the_curve_of_a_run_of_days_has_no_more_points_and_ends_where_the_run_is():
    pace = Pace()
    for step in range(10_000):
        pace.add(report(step + 1, success=step / 10_000))
    curve = pace.curve()
    assert 6 <= len(curve) <= 12
    assert curve == sorted(curve)
    assert curve[0] < 0.1
    assert curve[-1] > 0.85


def test_the_return_stands_in_where_there_is_no_success():
    _, bar = shown([report(step, success=None, episode_return=float(step)) for step in (1, 2)], width=80)
    assert "return \u2581\u2588 2" in bar


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.2, "0:07"), (725, "12:05"), (5400, "1:30:00"), (76 * 3600 + 60, "3 d 4 h"), (None, "-")],
)
def test_times_are_read_like_a_clock(seconds, text):
    assert clock(seconds) == text

"""What is drawn lies where its numbers say, and nothing that is written becomes HTML."""

import re

from rlinf_async.lab.report.charts import batch_sizes
from rlinf_async.lab.report.drawing import Axis, column, dot, line, plot, rows, stacked
from rlinf_async.lab.report.lines import MOST_POINTS, Line, health, line_figure, speed, thinned
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.run_view import subjects
from tests.lab.report.making import TRACE, metrics, write_run

EVIL = '<script>"&'
TEN = Axis(low=0.0, high=10.0, ticks=[(5.0, EVIL)])


def shown(directory, **parts):
    return subjects([RunFiles.read(write_run(directory, **parts))])


def test_a_line_goes_up_where_numbers_grow():
    assert 'd="M0 1000L500 500L1000 0"' in line([(0, 0), (5, 5), (10, 10)], TEN, TEN, colour="#111111")


def test_a_bar_stands_on_its_lower_end():
    bar = column(2, 4, 1, 6, TEN, TEN, fill="#111111", tooltip="x")
    assert 'x="200" y="400" width="200" height="500"' in bar


def test_nothing_that_is_written_becomes_html():
    drawn = [
        plot([dot((1, 1), TEN, TEN, colour="#111111", tooltip=EVIL)], TEN.named(EVIL), TEN, height=9),
        rows([EVIL], stacked([(1.0, "#111111", "#ffffff", EVIL, EVIL)]), TEN, row=9),
        column(0, 1, 0, 1, TEN, TEN, fill="#111111", tooltip=EVIL),
    ]
    assert not any("<script" in each or '"&"' in each for each in drawn)


def test_lines_of_very_many_steps_are_means_of_neighbours():
    found = thinned([(float(at), float(at % 2)) for at in range(2 * MOST_POINTS)])
    assert len(found) == MOST_POINTS
    assert {value for _, value in found} == {0.5}
    assert found[-1][0] == 2 * MOST_POINTS - 1


def test_few_points_say_their_numbers_and_many_do_not():
    few = Line(label="a run", colour="#111111", points=[(1.0, 0.5), (2.0, 0.7)])
    many = Line(label="a run", colour="#111111", points=[(float(at), 1.0) for at in range(200)])
    assert "a run: 0.7 at 2 step" in line_figure("t", [few], axis="step", form=str).drawing
    assert "<title>" not in line_figure("t", [many], axis="step", form=str).drawing


def test_batches_of_two_sizes_are_two_bars_of_equal_width_under_their_sizes(tmp_path):
    forwards = [("forward", at, at + 0.5, {"size": 16 if at < 4 else 32}) for at in range(5)]
    figure = batch_sizes(shown(tmp_path, trace={**TRACE, "inference rank 0": forwards}))
    assert re.findall(r">(16|32)<", figure.drawing) == ["16", "32"]
    assert len(set(re.findall(r'width="([\d.]+)"', figure.drawing))) == 1
    assert figure.table.rows == [("16", "80%"), ("32", "20%")]


def test_learning_health_is_drawn_as_far_as_it_was_measured(tmp_path):
    titles = [figure.title for figure in health(shown(tmp_path))]
    assert titles == ["Policy loss", "Explained variance of the critic"]
    lines = [metrics(step, train__actor__entropy_loss=1.4 - step / 10) for step in (1, 2, 3)]
    assert "Entropy" in [figure.title for figure in health(shown(tmp_path, lines=lines, name="b"))]


def test_the_names_that_another_framework_has_are_known_too(tmp_path):
    lines = [{**metrics(step), "train/actor/pg_clipfrac": 0.1, "critic/vf_loss": 2.0} for step in (1, 2)]
    titles = [figure.title for figure in health(shown(tmp_path, lines=lines))]
    assert {"Clip fraction", "Value loss"} <= set(titles)


def test_a_first_step_far_below_the_others_does_not_flatten_the_explained_variance(tmp_path):
    variance = next(each for each in health(shown(tmp_path)) if each.title.startswith("Explained"))
    assert re.search(r'class="line" d="M[\d.]+ 1000L[\d.]+ 250L', variance.drawing)
    assert variance.table.rows[0][2] == "-396"


def test_speed_and_load_are_drawn_over_steps_and_one_step_is_no_series(tmp_path):
    titles = [figure.title for figure in speed(shown(tmp_path))]
    assert {"Throughput", "Time of a step", "Busy shares", "Mean staleness", "Mean batch size"} <= set(titles)
    assert speed(shown(tmp_path, lines=[metrics(1)], name="short")) == []

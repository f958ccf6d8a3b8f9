import pytest

from rlinf_async.lab.report.drawing import categories, log_axis, round_axis
from rlinf_async.lab.report.formatting import duration, number, share


@pytest.mark.parametrize(
    ("values", "limits", "texts"),
    [
        ([3.0, 97.0], {"low": 0.0}, ["0", "20", "40", "60", "80", "100"]),
        ([0.99, 1.02], {}, ["0.99", "1", "1.01", "1.02"]),
        ([5.0, 5.0], {}, ["4.4", "4.6", "4.8", "5", "5.2", "5.4", "5.6"]),
        ([0.0], {"low": 0.0}, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([-396.0, 0.5], {"low": -1.0, "high": 1.0}, ["-1", "-0.5", "0", "0.5", "1"]),
        ([1e-12, 2e-12], {"low": 0.0}, ["0", "5.0e-13", "1.0e-12", "1.5e-12", "2.0e-12"]),
    ],
)
def test_an_axis_has_a_few_round_numbers_around_its_values(values, limits, texts):
    axis = round_axis(values, number, **limits)
    assert [text for _, text in axis.ticks] == texts
    assert all(0 <= axis.place(value) <= 1 for value in values)


def test_a_tight_axis_ends_at_its_values():
    axis = round_axis([30.0], number, low=0.0, tight=True)
    assert (axis.low, axis.high) == (0.0, 30.0)
    assert axis.place(15.0) == 0.5


def test_what_lies_outside_is_at_the_edge():
    axis = round_axis([0.5], share, low=-1.0, high=1.0)
    assert axis.place(-396.0) == 0.0
    assert axis.place(7.0) == 1.0


def test_a_logarithmic_axis_has_equal_room_for_equal_ratios_and_few_labels():
    axis = log_axis(0.001, 0.01, duration)
    assert [text for _, text in axis.ticks] == ["1 ms", "2 ms", "5 ms", "10 ms"]
    assert axis.place(0.01) - axis.place(0.001) == pytest.approx(1.0)
    assert axis.place(0.002) == pytest.approx(0.30103)
    assert [text for _, text in log_axis(1e-4, 2.0, duration).ticks] == [
        "0.1 ms",
        "1 ms",
        "10 ms",
        "100 ms",
        "1 s",
    ]


def test_of_very_many_categories_some_are_written():
    axis = categories([str(number) for number in range(40)])
    assert [text for _, text in axis.ticks][:3] == ["0", "4", "8"]
    assert axis.place(20.0) == 0.5

"""Tables of step times: as CSV and as YAML, and what is wrong in one."""

import pytest

from rlinf_async.lab.plan.rows.row import Gpus, read_rows
from tests.lab.plan.rows.given import row

CSV = """# of a paper
placement, ratio, gpus, envs, epochs, mode, step_s
collocated, , 8, 64, 8, off, 849.7
disaggregated, 3:1, 8, 64, 8, train+rollout,
"""
YAML = """
envs: 64
gpus: 8
epochs: 8
rows:
  - {placement: collocated, mode: off, step_s: 849.7}
  - {placement: disaggregated, ratio: 3:1, mode: train+rollout}
"""


@pytest.fixture
def table(tmp_path):
    def written(text, name="rows.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


def test_csv_and_yaml_say_the_same(table):
    rows = read_rows(table(CSV))
    assert rows == read_rows(table(YAML, "rows.yaml"))
    assert [one.step_s for one in rows] == [849.7, 0.0]
    assert rows[1].parts() == Gpus(simulators=6, inference=6, learner=2)
    assert rows[1].levels == {"train": True, "rollout": True, "streamer": False}


def test_hybrid_placement_trains_on_all_gpus():
    assert row("hybrid", ratio="3:1").parts() == Gpus(simulators=6, inference=2, learner=8)


def test_levels_1_and_3_need_gpus_of_their_own():
    assert row("collocated", mode="full").levels == {"train": False, "rollout": True, "streamer": False}
    assert row("collocated", mode="full").asynchronous_in_vain
    assert not row("collocated", mode="rollout").asynchronous_in_vain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("placement,gpus,envs,ratoi\ncollocated,8,64,1:1\n", "row 1: unknown key column.ratoi; did you mean"),
        ("placement,gpus\ncollocated,8\n", "row 1: it has no envs"),
        ("placement,gpus,envs\ncolocated,8,64\n", "did you mean 'collocated'"),
        ("placement,gpus,envs\ncollocated,eight,64\n", "gpus='eight' must be a number"),
        ("placement,gpus,envs,ratio\ndisaggregated,8,64,2:1\n", "ratio=2:1 does not divide gpus=8"),
        ("placement,gpus,envs,ratio\ndisaggregated,8,64,2\n", "ratio='2' must be two numbers"),
        ("placement,gpus,envs,step_s\ncollocated,8,64,nan\n", "step_s=nan must be a finite number"),
        ("placement,gpus,envs,mode\ncollocated,8,64,trian\n", "did you mean 'train'"),
        ("placement,gpus,envs\ncollocated,0,64\n", "gpus=0 must be at least 1"),
        ("placement,gpus,envs\ncollocated,8\n", "another number of cells"),
        ("placement,gpus,envs,share\ncollocated,8,64,2\n", "share=2.0 must be at most 1"),
        ("placement,gpus,envs\n", "has no rows"),
    ],
)
def test_what_is_wrong_is_named(table, text, words):
    with pytest.raises(ValueError, match=r"rows\.csv") as caught:
        read_rows(table(text))
    assert words in str(caught.value)


def test_yaml_that_is_no_table_is_refused(table):
    for text in ("rows: 3\n", "[1, 2]\n", "{"):
        with pytest.raises(ValueError, match=r"rows\.yml"):
            read_rows(table(text, "rows.yml"))

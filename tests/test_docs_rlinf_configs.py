"""What `explain --gpus 8` says of RLinf's example configs, against RLinf's own code and the page of docs."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.hosts.rlinf import losses
from rlinf_async.hosts.rlinf.keys import TABLE
from tests.checkouts import at_hand

DOCS = Path(__file__).parents[1] / "docs"
COUNTS = {"0.3": 102, "main": 108, "1365": 108}
"""On-policy training configs among the examples of each tree, counted by hand."""
NO_WHOLE_STEPS = "libero_spatial_opd_openvlaoft"
"""RLinf's `validate_cfg` accepts it; its actor asserts, after the first rollouts, that its sizes divide."""


@pytest.fixture(scope="module")
def generator():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        import generate_rlinf_configs

        yield generate_rlinf_configs
        sys.modules.pop("generate_rlinf_configs")


@pytest.fixture(scope="module")
def rows(generator):
    """A row per config for each tree that is at hand; about a minute."""
    found = at_hand()
    if not found:
        pytest.skip("RLinf's example configs are not here: tests/checkouts.py")
    return generator.collect({generator.NAMES[name]: root for name, root in found.items()})


@pytest.fixture(scope="module")
def every(rows):
    return [row for of_tree in rows.values() for row in of_tree]


def test_every_on_policy_example_is_asked_about(rows):
    assert {tree: len(found) for tree, found in rows.items()} == {tree: COUNTS[tree] for tree in rows}


def test_ranks_are_those_of_rlinfs_own_placement(every):
    explained = [row for row in every if row["facts"]]
    assert len(explained) > 80
    for row in explained:
        ours = row["facts"]["ranks"]
        assert (ours["env"], ours["inference"], ours["learner"]) == tuple(row["sizes"].values()), row["name"]


def test_trajectories_are_counted_as_rlinf_counts_them_when_it_has_validated_the_config(every):
    for row in every:
        if row["facts"] and row["epochs"]:
            assert row["facts"]["batch"]["trajectories_per_step"] == row["epochs"], row["name"]


def test_every_key_of_the_examples_has_a_fate(every):
    keys = {key for row in every for key in row["keys"]}
    assert len(keys) > 100
    assert sorted(key for key in keys if TABLE.find(key) is None) == []


def test_what_rlinf_accepts_is_accepted_unless_a_reward_model_is_named(every):
    refused = {row["name"]: row["refusal"] for row in every if row["refusal"] and row["stock"] is None}
    assert "15360 samples per step" in refused.pop(NO_WHOLE_STEPS, "15360 samples per step")
    assert [
        text for text in refused.values() if "reward.use_reward_model=True, the reward model" not in text
    ] == []


def test_the_page_says_which_script_of_rlinfs_runs_every_other_algorithm():
    page = (DOCS / "rlinf-configs.md").read_text()
    rows = [row for row in page.splitlines() if re.match(r"\| \d+ \| ", row)]
    assert sum(int(row.split("|")[1]) for row in rows) == 155 - 103 - 5 - 1
    for loss, (name, *scripts) in losses.OTHER_ALGORITHMS.items():
        (row,) = (row for row in rows if f"| {name}" in row)
        if "the same two" in row:
            row = rows[0]
        assert all(re.split(r"\.py", script)[0] in row for script in scripts), loss


def test_the_page_is_up_to_date(generator, rows):
    page = (DOCS / "rlinf-configs.md").read_text()
    assert generator.generate(page, rows) == page, "run docs/generate_rlinf_configs.py"

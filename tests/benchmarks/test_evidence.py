"""Every comparison of learning by one measure, against arithmetic that is written out."""

import json

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning import cells, evidence
from benchmarks.learning.comparison import finding

FOUND = evidence.findings()
T_9 = 2.2621571628540993
"""The 97.5 % quantile of Student's t with nine degrees of freedom."""


def curves(losses, *, batches=30):
    """Synchronous curves that rise from 0.2 to 0.8 in ten batches, and others that lose by seed after the
    first batch."""
    rise = [0.2 + 0.06 * min(batch, 10) for batch in range(batches)]
    return [rise] * len(losses), [[rise[0], *(value - loss for value in rise[1:])] for loss in losses]


def test_a_finding_is_students_interval_of_95_per_cent_against_the_synchronous_curve_itself():
    losses = np.linspace(0.01, 0.03, 10)
    sync, other = curves(losses)
    unit = np.mean(sync[0]) - 0.2
    differences = -losses * 29 / 30 / unit
    half = T_9 * differences.std(ddof=1) / np.sqrt(10)
    found = finding("group", "name", sync, other, lag=0.5)
    assert found.itself.difference == pytest.approx(differences.mean())
    assert found.itself.ci_low == pytest.approx(differences.mean() - half)
    assert found.itself.ci_high == pytest.approx(differences.mean() + half)
    # Moved by a batch, a curve has its first value twice, and lacks its last.
    assert found.moved.difference == pytest.approx(differences.mean() + 0.6 / 30 / unit)
    assert found.early == pytest.approx(-losses.mean() * 14 / 15 / (np.mean(sync[0][:15]) - 0.2))


@pytest.mark.parametrize(
    ("center", "spread", "words"),
    [
        (0.0, 0.002, "not below -5%"),
        (0.01, 0.002, "less, not below -5%"),
        (0.024, 0.012, "less"),
        (0.06, 0.002, "less, by more than 5%"),
        (-0.02, 0.002, "more, not below -5%"),
        (0.01, 0.1, "unknown"),
    ],
)
def test_what_may_be_said_follows_from_both_ends_of_the_interval(center, spread, words):
    sync, other = curves(center + spread * np.array([-1, 1] * 5))
    assert finding("group", "name", sync, other, lag=1.0).words == words


def test_looks_share_their_level_as_pococks_table_says():
    # Three and five equally spaced looks of a one-sided test at 5 %: bounds of 1.992 and 2.122.
    assert evidence.pocock_level((1, 2, 3)) == pytest.approx(0.0232, abs=2e-4)
    assert evidence.pocock_level((1, 2, 3, 4, 5)) == pytest.approx(0.0169, abs=2e-4)
    assert evidence.pocock_level((7,)) == pytest.approx(0.05, abs=1e-4)


def test_every_comparison_that_has_runs_is_among_them_and_none_is_left_out_for_what_it_says():
    counts = {group: sum(one.group == group for one in FOUND) for group in evidence.GROUP_NAMES}
    assert counts == dict(zip(evidence.GROUP_NAMES, (4, 4, 1, 5, 1, 4, 4, 9, 13, 7), strict=True))
    assert any(one.words == "unknown" for one in FOUND)


def test_the_stored_table_and_the_page_are_those_of_the_stored_runs():
    stored = json.loads((cells.RESULTS_FOLDER / "evidence.json").read_text())
    assert [one.as_json() for one in FOUND] == stored
    shown = [one for one in FOUND if one.group in evidence.SHOWN_GROUP_NAMES]
    assert evidence.table(shown) in evidence.PAGE.read_text()
    assert evidence.table(FOUND) in (cells.RESULTS_FOLDER / "evidence.md").read_text()

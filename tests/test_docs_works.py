"""docs/models.md: every run of its table has its evidence."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def works(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("what_works")


def test_every_run_is_named_by_its_evidence(works):
    for run in works.RUNS:
        path = ROOT / run.evidence.partition("#")[0]
        # The page must not prove itself: its own generated part is left out.
        text = path.read_text().partition("<!-- end of evidence -->")[2] or path.read_text()
        assert (run.named or run.config) in text, f"{run.evidence} does not name {run.config}"


def test_a_run_without_evidence_or_of_an_unknown_config_is_noticed(works, monkeypatch):
    unknown = works.Run("libero_object_ppo_nothing", works.CPU, "tests/vla/families.py")
    monkeypatch.setattr(works, "RUNS", (unknown,))
    with pytest.raises(KeyError, match="libero_object_ppo_nothing"):
        works.runs(works.ACCEPTED.read_text())


def test_every_model_and_accepted_config_is_in_the_table(works):
    page = works.ACCEPTED.read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    accepted = [row for row in rows if len(row) > 7 and row[6].strip("- ")]
    assert sum(works.accepted(page).values()) == len(accepted) > 90

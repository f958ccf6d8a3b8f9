"""RLinf's own loop beside all levels: the comparison that everybody wants."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.hosts.rlinf.metrics import in_rlinf_words
from rlinf_async.observe.reading.run_reader import RunReader
from tests.runs.conftest import Run, small
from tests.runs.test_matrix import GIVES_WAY

pytestmark = pytest.mark.ray
CONFIG = "metaworld_ppo_mlp"
RATE = "fresh env steps/s, the first over the second"
FILES = ("config.yaml", "run.json", "metrics.jsonl", "summary.json", "status.json", "trace", "tensorboard")


def tags(directory: Path) -> set[str]:
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return set(events.Tags()["scalars"])


@pytest.mark.shared_run(small(CONFIG, *GIVES_WAY), small(CONFIG, "async.mode=off"), last=True)
def test_off_and_full_leave_the_same_files_and_are_compared(ended: list[Run], tmp_path: Path) -> None:
    made = ended[::-1]
    for run in made:
        assert [name for name in FILES if not (run.directory / name).exists()] == []
        steps = RunReader(run.directory).metrics()
        assert [step["step"] for step in steps] == [1, 2, 3]
        for step in steps:
            assert step["async/env_steps"] == 8 * 4
            assert step["async/env_steps_per_second"] > 0
            assert 0 <= step["env/success_once"] <= 1
        for part in ("env", "inference", "learner"):  # of the last batches nothing is left to simulate
            shares = [step[f"async/busiest/{part}"] for step in steps]
            assert 0 < max(shares) <= 1
        assert run.summary["trajectories"]["trained"] == 3 * 8
        assert set(in_rlinf_words(steps[-1])) <= tags(run.directory)  # what TensorBoard lays on each other

    page = tmp_path / "page.html"
    result = CliRunner().invoke(cli.app, ["report", *(str(run.directory) for run in made), "-o", str(page)])
    assert result.exit_code == 0, result.output
    (table,) = [part for part in page.read_text().split("<table") if f"{RATE}</th>" in part]
    rows = {row.split("</th>")[0].split(">")[-1]: row for row in table.split("<tr>")}
    for name in (RATE, "success at the end"):
        cells = [cell.split("</td>")[0] for cell in rows[name].split("<td>")[1:]]
        assert len(cells) == 3
        assert "-" not in cells[:2]

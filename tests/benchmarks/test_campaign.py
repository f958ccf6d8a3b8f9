import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning.campaign import run_all


@dataclass(frozen=True)
class Cell:
    name: str
    path: Path

    def run(self) -> None:
        self.path.write_text(os.environ["RAY_ADDRESS"])


def test_a_run_that_fails_is_told_of_and_leaves_the_others_alone(tmp_path, capsys):
    good, bad, other = (
        Cell("good", tmp_path / "good"),
        Cell("bad", tmp_path / "no folder" / "bad"),
        Cell("other", tmp_path / "other"),
    )
    assert run_all([bad, good, other], processes=1) == [bad]
    assert [cell.path.read_text() for cell in (good, other)] == ["local"] * 2
    printed = capsys.readouterr().out
    assert printed.index("failed  bad") < printed.index("FileNotFoundError") < printed.index("done  good")

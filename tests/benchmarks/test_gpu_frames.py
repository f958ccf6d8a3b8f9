"""The comparison of frames that a GPU draws: its cases, and what it says of one that cannot run."""

import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.gpu import frames

FOUND = {
    "equal": True,
    "difference": None,
    "ratio": 0.25,
    "seconds_ratio": 0.5,
    "seconds_per_decision": {"stock": [0.4, 0.2], "last": [0.1, 0.2]},
}


@pytest.fixture
def called(monkeypatch):
    calls = []

    def run_command(command, output, *, environment, deadline_s):
        calls.append((command, dict(environment)))
        if "maniskill" in command:
            output.write_text("no driver\n")
            return 1
        with open(command[command.index("--out") + 1], "w") as file:
            json.dump(FOUND, file)
        return 0

    monkeypatch.setattr(frames, "run_command", run_command)
    return calls


def run(*arguments):
    app = Typer(pretty_exceptions_enable=False)
    app.command()(frames.main)
    return CliRunner().invoke(app, arguments)


def test_simulators_of_mujoco_draw_by_egl_and_one_that_cannot_run_stops_no_other(called, tmp_path):
    file = tmp_path / "frames.json"
    result = run("--cases", "maniskill-gpu,metaworld", "--json", str(file))
    assert result.exit_code == 0
    (_, first), (command, second) = called
    assert first["SIM_BACKEND"] == "gpu"
    assert second == {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
    assert command[3:6] == ["metaworld", "--chunk", "10"]
    rows = json.loads(file.read_text())["rows"]
    assert "no driver" in rows["maniskill-gpu"]["error"]
    assert rows["metaworld"] == FOUND
    assert "| `metaworld` | 0.2 to 0.4 | 0.1 to 0.2 | 0.50, CPU 0.25 | equal |" in result.output


def test_a_rehearsal_draws_small_pictures_without_a_gpu(called):
    assert run("--cases", "libero", "--gl", "osmesa", "--quick").exit_code == 0
    ((command, environment),) = called
    assert environment == {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}
    assert command[-8:-2] == ["--size", "64", "--decisions", "1", "--turns", "1"]


def test_an_unknown_case_is_refused_with_all_that_there_are(called):
    result = run("--cases", "habitat")
    assert result.exit_code == 2
    assert "metaworld-5" in " ".join(result.output.split())
    assert called == []

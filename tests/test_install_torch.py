"""The build of torch that `make setup` takes, and what is said of it."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "install_torch.py"


@pytest.fixture
def script(monkeypatch):
    """The script, on a machine without a GPU and without torch; pip does nothing."""
    if not SCRIPT.exists():
        pytest.skip("this is not a checkout")
    spec = importlib.util.spec_from_file_location("install_torch", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr(module, "DEVICES", ())
    monkeypatch.setattr(module, "is_there", lambda *_: False)
    return module


def tried(script, monkeypatch, *, failing=()) -> list[str]:
    """The indexes that pip is asked with, "" for its own."""
    asked = []

    def install(packages, constraints, index, *, last):
        asked.append(index)
        return index not in failing

    monkeypatch.setattr(script, "install", install)
    assert script.main("constraints", "torch") == int(asked[-1:] != [] and asked[-1] in failing)
    return asked


def test_without_a_gpu_torch_is_for_the_cpu_and_one_line_names_the_variable(script, monkeypatch, capsys):
    assert tried(script, monkeypatch) == [script.CPU_INDEX]
    (line,) = capsys.readouterr().out.splitlines()
    assert "for the CPU, as no NVIDIA GPU was found; TORCH_INDEX_URL names" in line


def test_pips_own_build_is_taken_where_the_index_for_the_cpu_gives_none(script, monkeypatch, capsys):
    assert tried(script, monkeypatch, failing=[script.CPU_INDEX]) == [script.CPU_INDEX, ""]
    (line,) = capsys.readouterr().out.splitlines()
    assert "did not give it: built for CUDA" in line


def test_beside_a_gpu_torch_is_pips_own(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "DEVICES", ("null",))  # as if it were a GPU's
    assert tried(script, monkeypatch) == [""]
    assert "has a GPU" in capsys.readouterr().out


def test_the_variable_has_the_last_word(script, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_INDEX_URL", "https://mirror/cu")
    assert tried(script, monkeypatch) == ["https://mirror/cu"]
    assert tried(script, monkeypatch, failing=["https://mirror/cu"]) == ["https://mirror/cu"]
    assert "by TORCH_INDEX_URL" in capsys.readouterr().out


@pytest.mark.parametrize(("pin", "there"), [("2.13.0", True), ("2.12.0", False)])
def test_a_pinned_release_of_any_build_is_not_fetched_again(script, monkeypatch, tmp_path, pin, there):
    monkeypatch.undo()
    monkeypatch.setattr(script, "version", lambda name: "2.13.0+cpu")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"torchdata==0.1\ntorch=={pin}\n")
    assert script.is_there("torch", str(constraints)) is there

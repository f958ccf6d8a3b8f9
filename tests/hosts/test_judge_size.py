"""The code that judges configs is small, and has one word for "cannot run": a reason, why it is refused."""

import ast
from pathlib import Path

import pytest

HOSTS = Path(__file__).parents[2] / "rlinf_async" / "hosts"
JUDGE = (
    "judge/presence.py",
    "judge/reasons.py",
    "judge/table.py",
    "local/config.py",
    "rlinf/keys.py",
    "rlinf/presence.py",
    "rlinf/reasons.py",
    "verl/reasons.py",
    "verl/trials.py",
)
"""The files about whether a config can run. Sizes are judged where they are calculated, and parts of a run
beside their code (tasks, scenes, placement). Which keys RLinf's sources read is a fact, with no reason in it:
`rlinf/config_reads.py` finds it, and `rlinf/keys.py` judges by it."""
MOST_LINES = 1770
OTHER_WORDS = ("contradiction", "fault", "misfit", "misshapen", "malformed", "obstacle", "refusal", "wrong")
"""Words for the same that names of functions do not use."""


def functions():
    for file in JUDGE:
        for node in ast.walk(ast.parse((HOSTS / file).read_text())):
            if isinstance(node, ast.FunctionDef):
                yield file, node


def test_the_judge_is_no_larger_than_this():
    lines = {name: len((HOSTS / name).read_text().splitlines()) for name in JUDGE}
    assert set(lines) >= {f"judge/{path.name}" for path in (HOSTS / "judge").glob("[!_]*.py")}
    assert sum(lines.values()) <= MOST_LINES, lines


def test_what_returns_reasons_is_called_so():
    named = {
        (file, node.name): "reason" in node.name
        for file, node in functions()
        if node.returns is not None and "Reason" in ast.unparse(node.returns)
    }
    assert len(named) > 30
    assert [key for key, is_named in named.items() if not is_named] == []


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_no_function_of_the_judge_has_another_word_for_it(word):
    assert [(file, node.name) for file, node in functions() if word in node.name.split("_")] == []

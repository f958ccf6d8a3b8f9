"""Every message that the package gives is on the generated page, and says what to do or is noted."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from rlinf_async.hosts.rlinf.keys import TABLE as RLINF_TABLE
from rlinf_async.hosts.verl.reasons import TABLE as VERL_TABLE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REMEDY = re.compile(
    r"[;:] (use|set|take|name|choose|give|remove|add|keep|install|save|write|unset|export|go on|activate"
    r"|raise|run|wait|leave|resume)\b|nearest|at least|must be|there is|did you mean"
)
"""A message with this says by itself what to write."""
CONTRACTS = ("core", "virtual", "past_weights")
"""Parts of paths: code whose errors are broken contracts of other code, so that no user can do anything."""
FOREIGN = re.compile(r"\((torch|veRL|MuJoCo|filelock)\)|failed to find a rendering device")
"""Messages of other packages on the page of symptoms."""


@pytest.fixture(scope="module")
def generator():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("generate_messages")


@pytest.fixture(scope="module")
def messages(generator):
    """Each message, with the module that gives it."""
    return {message: path for path in reversed(generator.modules()) for message in generator.messages(path)}


def test_every_message_says_what_to_do_or_is_noted(generator, messages):
    noted = generator.notes()["messages"]
    assert len(messages) > 300
    missing = [
        message
        for message, path in messages.items()
        if message not in noted and not REMEDY.search(message) and not set(CONTRACTS) & set(path.parts)
    ]
    assert missing == [], "add [meaning, what to do] to docs/messages.toml"


def test_a_note_of_a_message_that_is_not_there_is_refused(generator, monkeypatch):
    notes = {**generator.notes(), "messages": {"… has lost its way to the moon": ["", ""]}}
    monkeypatch.setattr(generator, "notes", lambda: notes)
    with pytest.raises(ValueError, match="way to the moon"):
        generator.tables()


def test_messages_are_found_in_every_form(generator):
    module = ast.parse(
        "def a(self):\n"
        "    raise ValueError(f'{a} is {b}' ' bad')\n"
        "def b(self):\n"
        "    message = f'waited {c}'\n"
        "    raise errors.DeadlineError(message)\n"
        "def c(self):\n"
        "    self.bell.first(attempt, waiting_for=lambda: self.what())\n"
        "def what(self):\n"
        "    return f'the {d}{e}'\n"
    )
    assert [generator.tidy(each) for each in generator.raised(module)] == ["… is … bad", "waited …"]
    assert [generator.tidy(each) for each in generator.waited_for(module)] == ["the …"]


def test_every_wait_with_a_deadline_says_who_hangs_and_no_other_does(generator):
    waits = {each for path in generator.modules() for each in generator.waits(path)}
    assert waits == set(generator.notes()["waits"])


def test_every_check_of_the_doctor_is_noted_and_no_other_is(generator):
    names = set()
    package = ROOT / "rlinf_async"
    for path in [*(package / "doctor").glob("*.py"), *(package / "hosts").glob("*/checks.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="Check"), args=[ast.Constant(value=name), *_]):
                    names.add(name)
                case ast.Call(func=ast.Attribute(attr="check_range"), args=[ast.Constant(value=name), *_]):
                    names.add(name)
    noted = set(generator.notes()["checks"])
    assert names - noted == set()
    known = "".join(path.read_text() for path in package.rglob("*.py"))
    assert [name for name in noted - names if f'"{name}"' not in known] == []


def test_every_refused_setting_is_on_the_page_of_keys_with_what_to_write(generator):
    page = generator.tidy((DOCS / "keys.md").read_text())
    refused = [*RLINF_TABLE.refused, *VERL_TABLE.refused]
    assert [each.name for each in refused if f"| `{each.name}` |" not in page] == []
    assert [each.name for each in refused if f"refused: {each.remedy} |" not in page] == []


def test_what_the_page_of_symptoms_quotes_is_said_by_the_code(generator):
    known = " ".join(each for path in generator.modules() for each in generator.strings(path))
    cells = re.findall(r"^\| ([^|]*…[^|]*) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = [text for cell in cells if not FOREIGN.search(cell) for text in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 10
    assert [text for text in quoted if not all(part in known for part in generator.fragments(text))] == []

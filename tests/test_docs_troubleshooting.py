"""Every message that the package gives is on the page for those who meet it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async.hosts.rlinf.refusals import REFUSALS
from rlinf_async.hosts.verl.refusals import REFUSALS as REFUSALS_OF_VERL

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
MODULES = sorted((ROOT / "rlinf_async").rglob("*.py"))
GAP = "…"
"""What stands for the parts of a message that vary."""

NO_MESSAGES = ("Exit", "SystemExit", "first_cause")
"""What is raised beside errors with a message."""
WAITS = ("wait", "first", "watch")
"""Calls of `ray_runtime.remote_calls.Fleet` that say what is waited for."""
ONLY_GAPS = {"…; …", "…"}
"""Messages that are put together from others, which are found by themselves or named by hand."""


def template(node: ast.expr) -> str:
    """The text of a string with a gap for each of its expressions."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(template, parts))
        case _:
            return GAP


def tidy(text: str) -> str:
    """With single spaces, and one gap where several follow each other."""
    return re.sub(rf"{GAP}(\s*{GAP})+", GAP, " ".join(text.split()))


def returned(module: ast.Module, name: str) -> Iterator[ast.expr]:
    """What functions of that name return."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)


def texts(module: ast.Module, node: ast.expr) -> Iterator[str]:
    """The templates of an expression: of a name, what is assigned to it; of a call, what it returns."""
    match node:
        case ast.Name(id=name):
            for each in ast.walk(module):
                if isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == [
                    name
                ]:
                    yield template(each.value)
        case ast.Call(func=ast.Attribute(attr=name)):
            yield from map(template, returned(module, name))
        case _:
            yield template(node)


def raised(module: ast.Module) -> Iterator[str]:
    """Messages of errors: raised, or made to be passed on."""
    for node in ast.walk(module):
        match node:
            case ast.Raise(exc=ast.Call(func=kind, args=[message, *_])) if (
                ast.unparse(kind).rpartition(".")[2] not in NO_MESSAGES
            ):
                yield from texts(module, message)
            case ast.Call(func=ast.Name(id="PeerError" | "DeadlineError" | "Reason"), args=[message, *_]):
                yield from texts(module, message)


def waited_for(module: ast.Module) -> Iterator[str]:
    """What a deadline's error says was waited for."""
    for node in ast.walk(module):
        match node:
            case ast.keyword(arg="waiting_for", value=ast.Lambda(body=body)):
                yield from texts(module, body)
            case ast.Call(func=ast.Attribute(attr=name), args=[_, what]) if name in WAITS:
                yield from texts(module, what)


def notes(module: ast.Module) -> Iterator[str]:
    """What a run says while it goes on."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(attr="note"), args=[ast.IfExp(body=one, orelse=other)]):
                yield from (template(one), template(other))
            case ast.Call(func=ast.Attribute(attr="note"), args=[text]):
                yield template(text)


def messages(path: Path) -> list[str]:
    module = ast.parse(path.read_text())
    found = [*raised(module), *notes(module)]
    if {"rlinf", "verl", "ray_runtime", "loops"} & set(path.parts):
        found += waited_for(module)
    return [each for each in map(tidy, found) if each not in ONLY_GAPS]


@pytest.fixture(scope="module")
def page() -> str:
    return tidy(PAGE.read_text())


SAYING = [path for path in MODULES if messages(path)]


@pytest.mark.parametrize("path", SAYING, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_message_is_on_the_page(path, page):
    missing = [message for message in messages(path) if message not in page]
    assert missing == [], "add what it means and what to do to docs/troubleshooting.md"


def test_messages_are_found_in_every_form():
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
    assert [tidy(each) for each in raised(module)] == ["… is … bad", "waited …"]
    assert [tidy(each) for each in waited_for(module)] == ["the …"]


def test_every_refused_setting_is_on_the_page_with_its_remedy(page):
    assert [refusal.name for refusal in REFUSALS if f"`{refusal.name}`" not in page] == []
    remedies = {
        refusal.remedy.removesuffix(": learner and rollouts run at the same time") for refusal in REFUSALS
    }
    assert [remedy for remedy in remedies if remedy not in page] == []


def test_every_setting_that_is_refused_under_verl_is_on_the_page_with_what_to_use(page):
    rows = [line for line in page.split("| ") if line]
    assert [refusal.name for refusal in REFUSALS_OF_VERL if f"`{refusal.name}`" not in page] == []
    uses = {refusal.override.partition("=")[2] for refusal in REFUSALS_OF_VERL}
    assert [use for use in uses if not any(f"`{use}`" in row for row in rows)] == []


def test_every_check_of_the_doctor_is_on_the_page(page):
    names = set()
    package = ROOT / "rlinf_async"
    for path in [*(package / "doctor").glob("*.py"), *(package / "hosts").glob("*/checks.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="Check"), args=[ast.Constant(value=name), *_]):
                    names.add(name)
                case ast.Call(func=ast.Attribute(attr="check_range"), args=[ast.Constant(value=name), *_]):
                    names.add(name)
    assert len(names) > 10
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []

"""Writes docs/messages.md: every message of the package, with what is noted about it in docs/messages.toml.

    python docs/generate_messages.py

Messages are read from the code: what it raises, what a deadline says was waited for, and what a run says.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generated import fill

DOCS = Path(__file__).parent
PAGE = DOCS / "messages.md"
NOTES = DOCS / "messages.toml"
PACKAGE = DOCS.parent / "rlinf_async"

GAP = "…"
"""Stands for the parts of a message that vary."""

BAR = "\\|"
"""A bar in the cell of a table."""

NO_MESSAGES = ("Exit", "SystemExit", "first_cause")
"""Raised beside errors with a message."""
WAITS = ("wait", "first", "watch")
"""Calls of `ray_runtime.driver.fleet.Fleet` that say what is waited for."""
WAITING = {"rlinf", "verl", "ray_runtime", "loops"}
"""Folders whose code waits with a deadline."""
ONLY_GAPS = {"…; …", "…", "…: …", "async.…"}
"""Messages that are put together from others, which are found by themselves."""

AREAS = {
    "configs": "Configs and the command line",
    "environments": "Environments, models and packages",
    "hosts/rlinf": "Under RLinf",
    "hosts/verl": "Under veRL",
    "hosts/local": "On the local host",
    "runs": "During a run",
    "observe": "Run directories, `status`, `report` and `trace`",
    "lab/demo": "Environments and policies of the demo",
    "lab": "`sweep`, `plan` and `bench`",
    "core": "Contracts between parts",
}
"""Headings of the page, and what belongs below each; see `area`."""


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
            case ast.Call(func=ast.Name(id="override_reason"), args=[message, override]):
                yield f"{template(message)}; use {template(override)}"
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


def said(module: ast.Module) -> Iterator[str]:
    """What a run says while it goes on."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(attr="note"), args=[ast.IfExp(body=one, orelse=other)]):
                yield from (template(one), template(other))
            case ast.Call(func=ast.Attribute(attr="note"), args=[text]):
                yield template(text)


def messages(path: Path) -> list[str]:
    """The messages of a module, each once, in its order."""
    module = ast.parse(path.read_text())
    found = [*raised(module), *said(module)]
    return list(dict.fromkeys(each for each in map(tidy, found) if each not in ONLY_GAPS))


def waits(path: Path) -> list[str]:
    """What the code of a module waits for with a deadline."""
    if not WAITING & set(path.parts):
        return []
    found = map(tidy, waited_for(ast.parse(path.read_text())))
    return list(dict.fromkeys(each for each in found if each not in ONLY_GAPS))


def strings(path: Path) -> set[str]:
    """Every string of a module, as a template."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {tidy(template(node)) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)}


def area(path: Path) -> str:
    """The key of `AREAS` that a module of the package belongs to."""
    folder = path.relative_to(PACKAGE).parent.as_posix()
    for prefix in ("hosts/rlinf", "hosts/verl", "hosts/local", "lab/demo"):
        if folder.startswith(prefix):
            return prefix
    first = folder.partition("/")[0]
    if path.relative_to(PACKAGE).as_posix().startswith(("observe/", "lab/report/", "lab/trace")):
        return "observe"
    if first in ("lab", "core"):
        return first
    if first in ("loops", "wire", "ray_runtime"):
        return "runs"
    return "environments" if first == "hosts" else "configs"


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def notes() -> dict[str, dict[str, Any]]:
    """What docs/messages.toml says: of messages [meaning, what to do], of waits, of checks of the doctor."""
    return tomllib.loads(NOTES.read_text())


def fragments(note: str) -> list[str]:
    """The parts of a noted text that do not vary, without marks at their ends."""
    return [part for each in note.split(GAP) if len((part := each.strip(" :;,.()=+\"'")).split()) > 1]


def home(text: str, of_module: Mapping[Path, set[str]]) -> Path | None:
    """The module that holds the longest part of a text that is put together of several strings."""
    longest = max(fragments(text) or [text], key=len)
    holding = (path for path, known in of_module.items() if any(longest in each for each in known))
    return next(holding, None)


def tables() -> dict[str, list[tuple[str, str, str]]]:
    """Messages with their notes, by area.

    Raises:
        ValueError: a note is of a text that the package does not have.
    """
    noted = notes()["messages"]
    found: dict[str, set[str]] = {key: set() for key in AREAS}
    listed: set[str] = set()
    for path in modules():
        found[area(path)] |= set(messages(path)) - listed
        listed |= set(messages(path))
    of_module = {path: strings(path) for path in modules()}
    for text in noted.keys() - listed:
        where = home(text, of_module)
        if where is None:
            raise ValueError(f"docs/messages.toml notes {text!r}, which no message of the package says")
        found[area(where)].add(text)
    return {
        key: [(each, *noted.get(each, ("", ""))) for each in sorted(of_area, key=_order)]
        for key, of_area in found.items()
    }


def _order(message: str) -> tuple[str, str]:
    """Messages are sorted by what does not vary."""
    return message.replace(GAP, "").lstrip(" :;,.=`").lower(), message


def _code(message: str) -> str:
    quote = "``" if "`" in message else "`"
    return f"{quote}{message}{quote}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; the first cell of a row is code."""
    lines = [heads, ["---"] * len(heads), *([_code(first), *rest] for first, *rest in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', BAR) for cell in line)} |" for line in lines)


def every_message() -> str:
    """The tables of all areas, each below its heading."""
    heads = ("message", "meaning", "what to do")
    parts = (f"## {AREAS[key]}\n\n{table(heads, rows)}" for key, rows in tables().items() if rows)
    return "\n\n".join(parts)


def every_wait() -> str:
    """What is waited for with a deadline, and who hangs if it ends the run."""
    noted = notes()["waits"]
    found = sorted({each for path in modules() for each in waits(path)}, key=_order)
    return table(("waited for", "who hangs"), [(each, noted.get(each, "")) for each in found])


def every_check() -> str:
    """The checks of `doctor`."""
    return table(("check", "not `ok` when"), notes()["checks"].items())


def generate(page: str) -> str:
    """The page with its tables anew."""
    return fill(page, {"messages": every_message(), "waits": every_wait(), "checks": every_check()})


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))

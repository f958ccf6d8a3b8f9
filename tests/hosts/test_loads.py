"""What a process carries is what it does: the modules of this package that it loads by importing its own."""

import ast
from functools import cache
from pathlib import Path

import pytest

import rlinf_async

PACKAGE = Path(rlinf_async.__file__).parent
OF_ENV_WORKER = ("hosts.rlinf.worker_process", "hosts.rlinf.env_worker")
OF_ROLLOUT_WORKER = ("hosts.rlinf.worker_process", "hosts.rlinf.rollout_worker")
OF_ACTOR = ("hosts.rlinf.worker_process", "hosts.rlinf.actor_worker")
OF_CHANNEL = ("ray_runtime.processes.request_channel",)
OF_LOCAL_RUN = (
    "cli.application",
    "cli.training",
    "compose",
    "hosts.local.host",
    "hosts.local.train",
    "observe.claim",
)


@cache
def file_of(module):
    """The file of a module by its name below the package; None for a name that is no module."""
    place = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def imported(body):
    """The names below the package that statements import when they run, those of functions left out."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE.name:
            module = node.module.partition(".")[2]
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.partition(".")[2] for a in node.names if a.name.startswith(f"{PACKAGE.name}."))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            yield from imported([*node.body, *getattr(node, "orelse", [])])


def loaded(modules):
    """The modules that are loaded with `modules`, and with every package around them."""
    found, waiting = set(), ["", *modules]
    while waiting:
        name = waiting.pop()
        if name in found or file_of(name) is None:
            continue
        found.add(name)
        parts = name.split(".")
        waiting += [".".join(parts[:size]) for size in range(1, len(parts))]
        waiting += imported(ast.parse(file_of(name).read_text()).body)
    return found


@pytest.mark.parametrize(
    ("modules", "most_modules", "most_lines"),
    [
        (OF_ENV_WORKER, 75, 10_100),
        (OF_ROLLOUT_WORKER, 72, 8_840),
        (OF_ACTOR, 89, 11_725),
        (OF_CHANNEL, 38, 4_675),
        (OF_LOCAL_RUN, 111, 17_390),
    ],
    ids=["env worker", "rollout worker", "actor", "request channel", "local run"],
)
def test_a_process_loads_no_more_than_its_work_needs(modules, most_modules, most_lines):
    names = loaded(modules)
    lines = sum(len(file_of(name).read_text().splitlines()) for name in names)
    assert len(names) <= most_modules, sorted(names)
    assert lines <= most_lines

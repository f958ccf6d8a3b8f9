"""The list of RLinf's names in use, against our classes themselves."""

import ast
import inspect
import textwrap
from pathlib import Path

import pytest

import rlinf_async
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.borrowed import BORROWED_NAMES
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from rlinf_async.hosts.rlinf.sources import sources_of
from rlinf_async.hosts.rlinf.tree import dotted_name

PACKAGE = Path(rlinf_async.__file__).parent
HOST = PACKAGE / "hosts" / "rlinf"
OURS = {
    "EnvWorker": (ShardedEnvWorker, "worker", ("env_shard", "compat")),
    "MultiStepRolloutWorker": (BatchingRolloutWorker, "", ()),
    "EmbodiedFSDPActor": (
        StreamingActorWorker,
        "actor",
        ("learner", "losses", "optimizer_progress"),
    ),
}
"""Our subclass of each worker, and the name by which other modules know an instance of it."""
MOST_CLASSES = 35
"""Classes, functions and constants of RLinf, beside what the next line bounds."""
MOST = 47
"""Attributes and methods of RLinf's workers; each is a thing that RLinf's next version may take away."""


def tree_of(cls):
    return ast.parse(textwrap.dedent(inspect.getsource(cls)))


def ours_among(cls):
    return [base for base in cls.__mro__ if base.__module__.startswith("rlinf_async.")]


def is_handle(node, name):
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == f"_{name}"
    )


def is_super(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def asked_of_itself(cls):
    attributes = [node for node in ast.walk(tree_of(cls)) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if is_handle(node.value, "self") or is_super(node.value)}


def asked_of_a_handle(name, modules):
    trees = [ast.parse((HOST / f"{module}.py").read_text()) for module in modules]
    attributes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if is_handle(node.value, name)}


def called_from_the_driver():
    """The words of our runner, among which are the names of the methods that it calls."""
    tree = ast.parse((HOST / "runner.py").read_text())
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {value for value in constants if isinstance(value, str)}


def names_in_use(name):
    """What our subclass asks of RLinf's class, reads, sets or overrides."""
    cls, handle, modules = OURS[name]
    ours = ours_among(cls)
    asked = set().union(*map(asked_of_itself, ours)) | asked_of_a_handle(handle, modules)
    asked |= called_from_the_driver()
    defined = set().union(*(vars(base) for base in ours))
    module, _, attribute = dotted_name(name).rpartition(".")
    theirs = sources_of("rlinf").members(f"{module}:{attribute}")
    return {used for used in (asked | defined) & theirs if not used.startswith("__")}


@pytest.mark.parametrize("name", OURS)
def test_every_name_of_rlinfs_worker_that_our_classes_use_is_listed_and_no_other(name):
    listed = set(BORROWED_NAMES[name].members)
    shared = set(BORROWED_NAMES["Worker"].members)  # its own too, listed once
    assert listed == names_in_use(name) - shared


def test_the_workers_lend_us_no_more_than_a_few_names():
    names = {member for name in OURS for member in BORROWED_NAMES[name].members} | set(
        BORROWED_NAMES["Worker"].members
    )
    assert len(names) <= MOST, sorted(names)


def test_the_list_is_no_longer_than_it_need_be():
    assert len(BORROWED_NAMES) <= MOST_CLASSES, sorted(BORROWED_NAMES)


def test_rlinf_is_imported_through_the_list_alone():
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "lab"):  # which measures RLinf's own loops
            continue
        imported = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        modules = {node.module for node in imported if node.module and node.module.split(".")[0] == "rlinf"}
        assert not modules, path

"""Which environments can take on the tasks of others is known before a run."""

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts import tasks
from rlinf_async.hosts.tasks import cannot_take_on

TASKS = AsyncConfig.from_mapping({"mode": "full", "train": {"balance": "tasks"}})


class Fixed:
    """Environments that cannot."""


def reasons(env, asynchrony=TASKS, **key):
    return [reason.text for reason in cannot_take_on(env, asynchrony, **key)]


def test_nothing_is_asked_of_environments_that_keep_their_tasks():
    keeps = AsyncConfig.from_mapping({"mode": "full"})
    assert reasons({"env_class": "nobody has this", "auto_reset": True}, keeps) == []


@pytest.mark.parametrize("name", ["emulated", "metaworld_task", "point_reach"])
def test_environments_of_this_package_can(name):
    pytest.importorskip("metaworld" if name == "metaworld_task" else "gymnasium")
    assert reasons({"env_class": name, "env_type": "metaworld", "auto_reset": False}) == []


def test_environments_that_go_on_from_rollout_to_rollout_are_refused_by_name():
    (text,) = reasons({"env_class": "emulated", "auto_reset": True}, key="env")
    assert "does not support env.auto_reset=True" in text
    assert "use env.auto_reset=false, or async.train.balance=exact" in text


@pytest.mark.parametrize(
    ("simulator", "why"),
    [
        ("libero", "draw the tasks of every rollout anew"),
        ("maniskill", "cannot be told which tasks to start"),
    ],
)
def test_rlinfs_own_environments_are_refused_by_name(simulator, why):
    (text,) = reasons({"env_type": simulator})
    assert text.startswith(f"async.train.balance=tasks: RLinf's {simulator} environments {why}")
    assert "use async.train.balance=exact, or an env.train.env_class with the method take_on" in text


def test_a_class_without_the_method_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(tasks, "load_class", lambda group, name: Fixed)
    (text,) = reasons({"env_class": "fixed"})
    assert "Fixed has no method take_on" in text


def test_a_class_that_cannot_be_imported_is_no_class_that_can(monkeypatch):
    def load(group, name):
        raise ImportError("No module named 'simulator'")

    monkeypatch.setattr(tasks, "load_class", load)
    (text,) = reasons({"env_class": "elsewhere"})
    assert "not known here, as it cannot be imported (No module named 'simulator')" in text

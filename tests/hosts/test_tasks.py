"""Which environments collect for any place in a batch is known before a run."""

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.entry_points import ENVS_GROUP, TAKE_ON_METHOD, load_class, names_of
from rlinf_async.hosts.tasks import TAKE_ON_GROUP, settled, task_reasons
from tests.fresh import printed

TASKS = AsyncConfig.from_mapping({"mode": "full", "advanced": {"balance": "tasks"}})


def reasons(env, asynchrony=TASKS, **key):
    return [reason.text for reason in task_reasons(env, asynchrony, **key)]


def balance(env, **block):
    return settled(AsyncConfig.from_mapping({"mode": "full", **block}), env).advanced.balance


def test_nothing_is_asked_of_environments_that_keep_their_tasks():
    keeps = AsyncConfig.from_mapping({"mode": "full", "advanced": {"balance": "exact"}})
    assert reasons({"env_class": "nobody has this", "auto_reset": True}, keeps) == []


@pytest.mark.parametrize("name", ["emulated", "metaworld_task", "point_reach"])
def test_environments_of_this_package_can_and_are_not_imported_to_know_it(name):
    section = {"env_class": name, "env_type": "metaworld", "auto_reset": False}
    assert reasons(section) == []
    assert balance(section) == "tasks"


def test_every_class_that_is_declared_to_take_on_tasks_has_the_method():
    for name in names_of(TAKE_ON_GROUP):
        pytest.importorskip("metaworld" if name == "metaworld_task" else "gymnasium")
        assert load_class(TAKE_ON_GROUP, name) is getattr(load_class(ENVS_GROUP, name), TAKE_ON_METHOD)


def test_environments_that_go_on_from_rollout_to_rollout_are_refused_by_name():
    (text,) = reasons({"env_class": "emulated", "auto_reset": True}, key="env")
    assert "does not support env.auto_reset=True" in text
    assert "use env.auto_reset=false, or async.advanced.balance=exact" in text
    assert balance({"env_class": "emulated", "auto_reset": True}) == "exact"


@pytest.mark.parametrize("simulator", ["calvin", "libero", "metaworld"])
def test_rlinfs_environments_that_draw_their_tasks_anew_collect_for_any_place(simulator):
    section = {"env_type": simulator, "auto_reset": False, "use_ordered_reset_state_ids": False}
    assert reasons(section) == []
    assert balance(section) == "tasks"


def test_rlinfs_environments_that_go_through_their_tasks_in_order_do_not():
    section = {"env_type": "libero", "auto_reset": False, "use_ordered_reset_state_ids": True}
    (text,) = reasons(section)
    assert "goes through its share of the tasks in order; use async.advanced.balance=exact" in text
    assert balance(section) == "exact"


@pytest.mark.parametrize("section", [{"env_type": "maniskill"}, {"env_class": "fixed"}])
def test_others_keep_their_tasks_and_are_refused_by_name_where_they_are_asked(section):
    (text,) = reasons(section)
    assert text.startswith("async.advanced.balance=tasks: ")
    assert next(iter(section.values())) in text
    assert balance(section) == "exact"


def test_tasks_stay_where_they_are_without_level_2_and_where_the_block_says_so():
    section = {"env_class": "emulated", "auto_reset": False}
    assert balance(section, rollout={"enabled": False}) == "exact"
    assert balance(section, advanced={"balance": "exact"}) == "exact"


def test_a_deterministic_run_is_exact():
    block = AsyncConfig.from_mapping({"mode": "train", "deterministic": True})
    assert not settled(block, {"env_class": "emulated"}).takes_tasks


def test_knowing_imports_no_simulator():
    code = (
        "import sys; from rlinf_async.config import AsyncConfig\n"
        "from rlinf_async.hosts.tasks import settled\n"
        "settled(AsyncConfig.from_mapping({'mode': 'full'}), {'env_class': 'metaworld_task'}); "
        "print([name for name in ('metaworld', 'mujoco', 'torch') if name in sys.modules])"
    )
    assert printed(code) == "[]\n"

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from rlinf_async import entry_points
from rlinf_async.entry_points import OWN_PACKAGE, find, load_class


@pytest.fixture
def installed(monkeypatch):
    """Pretends that packages provide entry points of the group `classes`."""

    def install(*entries):
        made = []
        for package, name, value in entries:
            entry = EntryPoint(name=name, value=value, group="classes")
            vars(entry)["dist"] = SimpleNamespace(name=package) if package else None
            made.append(entry)

        def select(**wanted):
            return [
                entry for entry in made if all(getattr(entry, key) == value for key, value in wanted.items())
            ]

        monkeypatch.setattr(entry_points, "entry_points", select)

    return install


def test_our_class_is_found_when_nobody_else_provides_one(installed):
    installed((OWN_PACKAGE, "env", "ours:Env"), (OWN_PACKAGE, "actor", "ours:Actor"))
    assert find("classes", "env").value == "ours:Env"


@pytest.mark.parametrize("order", [1, -1])
def test_another_package_beats_ours_whatever_the_order(installed, order):
    installed(*[(OWN_PACKAGE, "env", "ours:Env"), ("theirs", "env", "theirs:Env")][::order])
    assert find("classes", "env").value == "theirs:Env"


def test_two_other_packages_are_an_error_that_names_both(installed):
    installed((OWN_PACKAGE, "env", "ours:Env"), ("one", "env", "one:Env"), ("two", "env", "two:Env"))
    with pytest.raises(
        ValueError, match=r"more than one package provides classes: env; .*one \(one:Env\), two \(two:Env\)"
    ):
        find("classes", "env")


def test_a_package_that_is_installed_twice_is_one_provider(installed):
    installed(("theirs", "env", "theirs:Env"), ("theirs", "env", "theirs:Env"))
    assert find("classes", "env").value == "theirs:Env"


def test_an_entry_without_a_distribution_counts_as_anothers(installed):
    installed((OWN_PACKAGE, "env", "ours:Env"), (None, "env", "loose:Env"))
    assert find("classes", "env").value == "loose:Env"


def test_a_name_that_nobody_provides_is_answered_with_those_that_exist(installed):
    installed((OWN_PACKAGE, "env", "ours:Env"), (OWN_PACKAGE, "actor", "ours:Actor"))
    with pytest.raises(ValueError, match="no package provides classes: critic; there is actor, env"):
        find("classes", "critic")


def test_an_empty_group_says_so(installed):
    installed()
    with pytest.raises(ValueError, match="no package provides classes: env; there is nothing"):
        find("classes", "env")


def test_what_is_found_is_imported(installed):
    installed((OWN_PACKAGE, "counter", "collections:Counter"))
    assert load_class("classes", "counter")("aa") == {"a": 2}

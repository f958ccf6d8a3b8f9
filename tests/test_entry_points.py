import os
from importlib.metadata import EntryPoint, EntryPoints
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

        monkeypatch.setattr(entry_points, "provided", lambda group: EntryPoints(made).select(group=group))

    return install


OURS, ACTOR = (OWN_PACKAGE, "env", "ours:Env"), (OWN_PACKAGE, "actor", "ours:Actor")
THEIRS, LOOSE = ("theirs", "env", "theirs:Env"), (None, "env", "loose:Env")


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        pytest.param([OURS, ACTOR], "ours:Env", id="nobody else provides one"),
        pytest.param([OURS, THEIRS], "theirs:Env", id="another package beats ours"),
        pytest.param([THEIRS, OURS], "theirs:Env", id="whatever the order"),
        pytest.param([THEIRS, THEIRS], "theirs:Env", id="installed twice, one provider"),
        pytest.param([OURS, LOOSE], "loose:Env", id="without a distribution, another's"),
    ],
)
def test_the_class_of_another_package_is_found_before_ours(installed, entries, found):
    installed(*entries)
    assert find("classes", "env").value == found


def test_two_other_packages_are_an_error_that_names_both(installed):
    installed(OURS, ("one", "env", "one:Env"), ("two", "env", "two:Env"))
    with pytest.raises(
        ValueError, match=r"more than one package provides classes: env; .*one \(one:Env\), two \(two:Env\)"
    ):
        find("classes", "env")


def test_a_name_that_nobody_provides_is_answered_with_those_that_exist(installed):
    installed(OURS, ACTOR)
    with pytest.raises(ValueError, match="no package provides classes: critic; there is actor, env"):
        find("classes", "critic")


def test_an_empty_group_says_so(installed):
    installed()
    with pytest.raises(ValueError, match="no package provides classes: env; there is nothing"):
        find("classes", "env")


def test_what_is_found_is_imported(installed):
    installed((OWN_PACKAGE, "counter", "collections:Counter"))
    assert load_class("classes", "counter")("aa") == {"a": 2}


def test_an_import_leaves_the_working_directory_as_it_was(installed, tmp_path, monkeypatch):
    (tmp_path / "wanders.py").write_text("import os\nos.chdir('/')\nloads = dict\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    installed(("other", "name", "wanders:loads"))
    assert load_class("classes", "name") is dict
    assert os.getcwd() == str(tmp_path)

"""Source trees that an environment variable names: folders, git directories, or a sentence."""

import os
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests import checkouts
from tests.sources import Source, places, unpack

ROOT = Path(__file__).parents[1]
VARIABLE = "SOURCES_OF_A_TEST"


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path_factory, monkeypatch):
    """What is unpacked here goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
def clone(tmp_path):
    """A git directory with two commits: the first is called `first`; both have `package` and `docs`."""
    root = tmp_path / "clone"
    for text in ("first", "second"):
        for folder in ("package", "docs"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / "file").write_text(text)
        if text == "first":
            git(root, "init", "--quiet", "--initial-branch", "main")
        git(root, "add", ".")
        git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", text)
        if text == "first":
            git(root, "tag", "first")
    return root


def git(folder, *words):
    command = ("git", "-C", folder, *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def bare(clone, tmp_path):
    git(tmp_path, "clone", "--quiet", "--bare", clone, tmp_path / "bare")
    return tmp_path / "bare"


def named(monkeypatch, text, *refs):
    monkeypatch.setenv(VARIABLE, text)
    sources = [Source(name=f"tree-{ref}", ref=ref, holds=("package",)) for ref in refs or ("first",)]
    return places(VARIABLE, sources)


def read(place):
    return (place / "package" / "file").read_text()


@pytest.mark.parametrize("kind", ["clone", "bare"])
def test_of_a_git_directory_every_known_commit_that_it_has_is_unpacked_with_what_is_needed(
    kind, request, monkeypatch
):
    found = named(monkeypatch, str(request.getfixturevalue(kind)), "first", "main", "nowhere")
    assert {name: read(place) for name, place in found.items()} == {
        "tree-first": "first",
        "tree-main": "second",
    }
    assert not (found["tree-main"] / "docs").exists()
    assert sorted(found["tree-main"].iterdir()) == [found["tree-main"] / "package"]


def test_a_ref_and_a_name_of_ones_own_are_taken(bare, clone, monkeypatch):
    commit = git(bare, "rev-parse", "main")
    found = named(monkeypatch, f"mine={bare}@{commit}, tree-first={clone}@main,old={bare}@first")
    assert {name: read(place) for name, place in found.items()} == {
        "mine": "second",
        "tree-first": "second",
        "old": "first",
    }


def test_a_folder_is_used_as_it_is_and_is_what_processes_of_a_run_are_told(clone, bare, monkeypatch):
    found = named(monkeypatch, f"mine={clone},{bare}")
    assert found["mine"] == clone
    assert os.environ[VARIABLE] == f"mine={clone},tree-first={found['tree-first']}"
    assert named(monkeypatch, os.environ[VARIABLE]) == found


def test_nothing_is_named_by_nothing(monkeypatch):
    assert named(monkeypatch, "") == {}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mine=/dev/null/nowhere", "there is no folder /dev/null/nowhere"),
        ("{tmp}", "is no git directory; name the tree in it: NAME="),
        ("{bare}@nowhere", "it has none of tree-nowhere"),
        ("mine={bare}@nowhere", "fatal: "),
    ],
)
def test_what_is_no_tree_is_a_sentence_with_the_variable_and_the_entry(
    entry, said, bare, tmp_path, monkeypatch
):
    entry = entry.format(bare=bare, tmp=tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        named(monkeypatch, entry, "nowhere")
    assert str(raised.value).startswith(f"{VARIABLE}, {entry}: ")


@pytest.mark.parametrize("filters", [True, False])
def test_archives_are_unpacked_by_pythons_with_and_without_filters(filters, tmp_path, monkeypatch):
    """Python 3.11.0 to 3.11.3 have no filters: their `extractall` does not know the word."""
    (tmp_path / "file").write_text("text")
    with tarfile.open(tmp_path / "archive.tar", "w") as tar:
        tar.add(tmp_path / "file", "file")
    if not filters:
        stock = tarfile.TarFile.extractall
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: stock(self, path))
    unpack(tmp_path / "archive.tar", tmp_path / "there")
    assert (tmp_path / "there" / "file").read_text() == "text"


def test_the_files_that_test_other_trees_of_rlinf_are_those_of_the_makefile():
    """Also those that take a tree by the name of another than the released one."""
    listed = re.search(r"^TESTS_TREES := ((?:\\\n|.)*)$", (ROOT / "Makefile").read_text(), re.M)[1]
    takes = re.compile(rf"\b(TREES|others|at_hand)\b|{'|'.join(checkouts.TREES[1:])}")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "tests.checkouts import" in path.read_text() and takes.search(path.read_text())
    }
    assert found == set(re.split(r"[\\\s]+", listed))


@pytest.mark.skipif(
    checkouts.RELEASED not in checkouts.named(),
    reason=f"{checkouts.RELEASED} is left out: {checkouts.VARIABLE} names no such tree ({checkouts.HOW})",
)
def test_the_wheel_that_stands_for_a_tree_has_the_same_python_files():
    wheel, tree = checkouts._installed(), checkouts.named()[checkouts.RELEASED] / "rlinf"
    both = [
        {path.relative_to(root): path.read_text() for path in root.rglob("*.py")} for root in (wheel, tree)
    ]
    assert both[0] == both[1]

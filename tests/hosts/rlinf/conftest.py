"""Cases that learners of two ranks have trained, and some of them a single learner as well."""

import tempfile
from pathlib import Path

import pytest


def trained(ranks, cases):
    """What `run_cases` says of them, in a folder of its own."""
    from tests.hosts.rlinf.learners import run_cases

    with tempfile.TemporaryDirectory() as directory:
        return run_cases(ranks, cases, Path(directory))


def by_ranks(cases, by_one):
    """Ask for `run`: each case from the fixture `runs` of the module, and those of `by_one` from `by_one`."""
    alone = [("by_one", case.name) for case in cases if case in by_one]
    given = [*(("runs", case.name) for case in cases), *alone]
    ids = [f"{'2 ranks' if ranks == 'runs' else '1 rank'}-{name}" for ranks, name in given]
    return pytest.mark.parametrize("run", given, indirect=True, ids=ids)


@pytest.fixture
def run(request):
    """What the trainers of a case did, and its name."""
    ranks, name = request.param
    return {**request.getfixturevalue(ranks)[name], "name": name}

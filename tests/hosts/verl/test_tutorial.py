"""The commands of docs/verl.md, as far as a command can be asked before it starts anything."""

import shlex
from pathlib import Path

from rlinf_async.hosts.verl.explain import explain
from tests.hosts.verl.configs import composed
from tests.test_docs import blocks

PAGE = Path(__file__).parents[3] / "docs" / "verl.md"


def explained(kind):
    """What `explain` says of each config that the page gives to this command."""
    for line in blocks(PAGE.read_text()):
        words = shlex.split(line, comments=True)
        if words[:2] == ["rlinf-async", kind]:
            yield explain(composed(*words[3:], name=words[2]))


def test_the_first_command_names_a_config_with_all_levels():
    facts, placed = explained("explain")
    assert facts["levels"] == placed["levels"]
    assert facts["levels"] == {"train": True, "rollout": True, "streamer": True}


def test_both_runs_of_the_comparison_are_the_same_run_with_and_without_the_levels():
    full, off = explained("train")
    assert (any(full["levels"].values()), any(off["levels"].values())) == (True, False)
    assert full["batch"]["steps"] == off["batch"]["steps"] == 12
    assert full["batch"]["samples_per_step"] == off["batch"]["samples_per_step"]

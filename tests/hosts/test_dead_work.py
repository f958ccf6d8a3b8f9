"""The words on work that a config leaves out."""

import pytest

from rlinf_async.config import SKIP_KINDS, AsyncConfig
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts import dead_work
from rlinf_async.hosts.judge.reasons import Reason

LEAN = AsyncConfig.from_mapping({"mode": "lean"})
WATCHED = Reason("a video looks at every frame", "video=false")
TOLD = "a video looks at every frame; video=false leaves this work out"


@pytest.mark.parametrize(("steps", "share"), [(2, "50%"), (5, "80%"), (10, "90%")])
def test_all_frames_of_a_decision_but_the_last_are_left_out(steps, share):
    found = dead_work.frames(steps_per_decision=steps)
    assert share in found.left_out
    assert found.kept == ()


def test_a_decision_of_one_step_has_no_frame_to_leave_out():
    found = dead_work.frames(steps_per_decision=1)
    assert (found.left_out, "one step" in found.kept[0]) == ("", True)


def test_every_frame_is_drawn_for_whoever_looks_at_it_and_the_reason_is_told():
    assert dead_work.frames(steps_per_decision=5, kept=[WATCHED]).kept == (TOLD,)
    assert dead_work.frames(steps_per_decision=5, kept=[WATCHED]).left_out == ""


def test_an_override_that_a_reason_names_itself_is_named_once():
    named = Reason("a bonus counts them; set bonus=0", "bonus=0")
    assert dead_work.reason_texts([named, Reason("unknown")]) == (named.text, "unknown")


@pytest.mark.parametrize(("stands", "unit"), [(True, "a simulator is not"), (False, "a shard is not")])
def test_the_unit_that_is_not_stepped_is_named(stands, unit):
    assert unit in dead_work.ended(skips=True, stands=stands, kept=[]).left_out


def test_what_counts_after_an_end_is_told_where_nothing_is_left_out():
    found = dead_work.ended(skips=False, stands=False, kept=[WATCHED])
    assert (found.left_out, found.kept) == ("", (TOLD,))


@pytest.mark.parametrize("kind", SKIP_KINDS)
def test_kinds_that_are_off_are_not_told(kind):
    asynchrony = AsyncConfig.from_mapping({"skip": {kind: True}})
    facts = dead_work.of_own_workers(asynchrony, steps_per_decision=5, skips_ended=True, left_out=LeftOut())
    assert [one["kind"] for one in facts] == [kind]


def test_a_reader_sees_a_row_for_each_kind():
    facts = dead_work.of_own_workers(
        LEAN, steps_per_decision=5, skips_ended=False, left_out=LeftOut(masked=True), kept=[WATCHED]
    )
    shown = dict(dead_work.rows({"dead_work": facts}))
    assert list(shown) == ["left out", "  frames", "  ended", "  masked"]
    assert shown["  ended"] == f"nothing: {TOLD}"
    assert "async/skipped/samples" in shown["  masked"]
    assert list(dead_work.rows({"dead_work": []})) == []

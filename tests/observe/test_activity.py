from rlinf_async.observe.activity import progress_of, seconds, who_does_what
from rlinf_async.observe.diagnosis import Diagnosis


def doing(*spans, ended=0, **facts):
    return {"pid": 1, "ended": ended, "open": [dict(span) for span in spans], **facts}


def span(kind, age, **facts):
    return {"kind": kind, "seconds": age, **facts}


def lines(**processes):
    return dict(who_does_what(processes))


def test_shards_that_do_the_same_are_counted_and_the_longest_is_named():
    said = doing(span("step", 61.0, shard=3), span("step", 2.0, shard=1), span("gate", 30.0, shard=0))
    assert (
        lines(env=said)["env"]
        == "2 shards stepping (longest: shard 3, for 61 s), shard 0 at the gate for 30 s"
    )


def test_a_process_that_does_not_answer_is_said_to_do_so():
    assert lines(learner=None)["learner"] == "does not answer"


def test_a_learner_in_an_optimizer_step_is_in_nothing_else():
    said = doing(span("fetch", 9.0, batch=5), span("accept", 4.0, batch=4), span("optimizer step", 1.0))
    assert lines(learner=said)["learner"] == "in an optimizer step for 1.0 s"
    assert (
        lines(learner=doing(span("fetch", 9.0, batch=5)))["learner"]
        == "waiting for trajectories for 9.0 s, batch 5"
    )


def test_the_books_are_told_by_whoever_keeps_them():
    said = doing(version=4, trajectories="produced 3 = trained 3")
    assert lines(channel=said)["channel"] == "version 4; produced 3 = trained 3"


def test_progress_is_known_of_those_who_answer():
    assert progress_of({"a": doing(ended=3), "b": None}) == {"a": 3}


def test_the_busiest_part_bounds_a_run():
    shares = {"env": 0.93, "inference": 0.4, "learner": 0.6, "publication": 0.0}
    found = Diagnosis.of(shares)
    assert found.saturated
    assert found.sentence() == "Environments bound this run: the busiest shard works 93% of the time."


def test_a_run_in_which_everybody_waits_is_said_to_be_bound_by_nothing():
    found = Diagnosis.of({"env": 0.3, "learner": 0.45})
    assert not found.saturated
    assert found.sentence("this step") == (
        "Nothing is busy all the time in this step: of the learner, the busiest rank works 45% of the time."
    )


def test_a_change_of_units_is_where_it_is_said():
    ages = (9.94, 9.96, 10.0, 599.4, 600.0, 3660.0, 7199.0, 7200.0, 36000.0)
    assert [seconds(age) for age in ages] == [
        "9.9 s", "10.0 s", "10 s", "599 s", "10 min", "61 min", "120 min", "2.0 h", "10.0 h",
    ]  # fmt: skip


def test_facts_of_a_process_without_shards_are_told_one_after_another():
    said = doing(span("send", 1.0, batch=2, version=3, size=4))
    assert lines(learner=said)["learner"] == "sending weights for 1.0 s, batch 2, version 3, size 4"


def test_a_kind_without_words_is_called_by_its_name():
    assert lines(x=doing(span("dream", 1.0)))["x"] == "dream for 1.0 s"
    assert lines(x=doing(span("dream", 1.0, shard=2)))["x"] == "shard 2 dream for 1.0 s"
    both = doing(span("dream", 1.0, shard=2), span("dream", 2.0, shard=1))
    assert lines(x=both)["x"] == "2 shards dream (longest: shard 1, for 2.0 s)"


def test_a_process_in_which_nothing_is_open_is_between_two_tasks():
    assert lines(x=doing())["x"] == "between two tasks"


def test_what_a_learner_is_in_hides_what_it_is_part_of():
    def said(*kinds):
        return lines(x=doing(*(span(kind, 1.0) for kind in kinds)))["x"]

    for inner, words in (("micro-batch", "in a micro-batch"), ("optimizer step", "in an optimizer step")):
        for outer in ("accept", "finish"):
            assert said("fetch", outer, inner) == f"{words} for 1.0 s"
    for outer in ("accept", "finish"):
        assert said("fetch", outer) == "training for 1.0 s"

"""Other settings of a job, as overrides."""

import pytest

from rlinf_async.lab.plan.job import changed
from tests.lab.plan.given import job


def test_overrides_change_levels_shards_and_batches():
    assert changed(job(), ["async.rollout.shards=2"]).settings.plan.shards == 2
    assert changed(job(), ["async.mode=train"]).settings.plan.shards == 1
    assert changed(job(), ["async.mode=off"]).settings.asynchrony.active is False
    assert changed(job(), ["async.train=false", "async.mode=full"]).settings.asynchrony.train.enabled
    assert not changed(job(), ["async.mode=full", "async.train=false"]).settings.asynchrony.train.enabled
    again = changed(changed(job(), ["async.mode=train"]), ["async.mode=full"])
    assert again.settings.plan.shards == 8  # as shards: auto would have it
    tasks = changed(
        job(), ["async.advanced.balance=tasks", "async.train.max_staleness=2"]
    ).settings.asynchrony
    assert (tasks.advanced.balance, tasks.max_staleness) == ("tasks", 2)


def test_a_job_grows_with_its_ranks_and_micro_batches_shrink_where_they_must():
    grown = changed(job(), ["plan.total_envs=16", "plan.env_workers=2", "plan.learner_ranks=4"]).settings
    assert (grown.plan.shards, grown.samples_per_batch, grown.global_batch_size) == (16, 96, 96)
    assert grown.micro_batch_size * 4 <= 96
    assert 96 // 4 % grown.micro_batch_size == 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor.lr=1", "no override that can be planned"),
        ("async.rolout.shards=2", "unknown key"),
        ("async.rollout.shards=3", "do not divide"),
        ("plan.total=8", "no override that can be planned"),
        ("async.rollout.max_batch_size=0", "at least 1"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(override, said):
    with pytest.raises(ValueError, match=said):
        changed(job(), [override])

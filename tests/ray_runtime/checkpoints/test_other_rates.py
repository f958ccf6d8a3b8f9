"""A run that goes on with another schedule of learning rates than that of its checkpoint says so."""

import json

import pytest

from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import LIST_FILE, facts_of, written_aside
from rlinf_async.ray_runtime.checkpoints.other_rates import RATES_FACT, other_rates

COSINE = {"lr_scheduler": "cosine", "total_training_steps": 4}


def checkpoint(parent, rates):
    folder = parent / "global_step_4"
    with written_aside(folder, {RATES_FACT: rates} if rates is not None else {}) as aside:
        (aside / "actor").write_bytes(b"x")
    return folder


def test_a_schedule_that_is_stretched_is_said_with_both_lengths(tmp_path):
    said = other_rates(checkpoint(tmp_path, COSINE), 4, {**COSINE, "total_training_steps": 9})
    assert said == (
        "the earlier run had another learning-rate schedule (total_training_steps: 4, now 9): rates after "
        "step 4 are not those of one longer run"
    )


def test_another_kind_of_schedule_is_said_with_what_only_one_of_them_has(tmp_path):
    said = other_rates(checkpoint(tmp_path, COSINE), 4, {"lr_scheduler": "constant"})
    assert "(lr_scheduler: 'cosine', now 'constant', total_training_steps: 4, now None)" in said


@pytest.mark.parametrize("before", [COSINE, None, "cosine", 3])
def test_nothing_is_said_of_the_same_schedule_and_where_the_checkpoint_says_none(tmp_path, before):
    assert other_rates(checkpoint(tmp_path, before), 4, dict(COSINE)) == ""


def test_a_long_value_of_a_strange_checkpoint_is_cut(tmp_path):
    said = other_rates(checkpoint(tmp_path, {"lr_scheduler": "x" * 9999}), 4, COSINE)
    assert len(said) < 400


def test_a_list_that_was_changed_has_no_facts(tmp_path):
    folder = checkpoint(tmp_path, COSINE)
    assert facts_of(folder)[RATES_FACT] == COSINE
    content = json.loads((folder / LIST_FILE).read_text())
    content[RATES_FACT] = {"lr_scheduler": "constant"}
    (folder / LIST_FILE).write_text(json.dumps(content))
    assert facts_of(folder) == {}
    assert facts_of(tmp_path / "global_step_9") == {}

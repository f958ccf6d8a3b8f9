"""The check of the first batch by veRL's engine: a policy that is the one that acted, and others."""

import logging

import pytest
import torch

from rlinf_async.core.premise import MAX_LOGPROB_DIFFERENCE
from tests.hosts.verl.engines import learner, learner_of, pieces, rollout, settings, train_pieces, training_of

NAMED = r"vla\.model\.model_type='gaussian_mlp'"


def acted(worker, of, *, shift=0.0):
    """A rollout as the rank's policy itself would have recorded it, but for what it is off."""
    fields = rollout(of)
    states = torch.cat([fields["forward_inputs"]["states"], fields["bootstrap_inputs"]["states"]])
    actions = torch.cat([fields["forward_inputs"]["action"], fields["bootstrap_inputs"]["action"]])
    with torch.no_grad():
        said = worker.engine.module(
            forward_inputs={"states": states.flatten(0, 1), "action": actions.flatten(0, 1)}
        )
    steps, width = fields["prev_logprobs"].shape[:2]
    fields["prev_logprobs"] = said["logprobs"][: steps * width].reshape(fields["prev_logprobs"].shape) + shift
    fields["prev_values"] = said["values"].reshape(steps + 1, width)
    return fields


def examine(*overrides, mode="train", shift=0.0):
    of = settings(asynchrony={"mode": mode})
    worker = learner(of, *overrides)
    training = training_of(worker, of, examined=True)
    training.begin(0)
    with training.working():
        training.rollout(pieces(of, acted(worker, of, shift=shift)))
    return training.premise


def test_the_policy_that_acted_gives_back_what_was_stored(caplog):
    premise = examine()
    assert premise.logprobs < 1e-6
    assert premise.values < 1e-6
    assert not premise.keeps_values
    assert caplog.records == []


@pytest.mark.parametrize("mode", ["off", "streamer", "full"])
def test_a_policy_of_other_probabilities_ends_the_run_and_is_named_whatever_level_is_on(mode):
    with pytest.raises(RuntimeError, match=rf"{NAMED}: prev_logprobs of the first batch.*off by 1\.5 on"):
        examine(mode=mode, shift=MAX_LOGPROB_DIFFERENCE + 0.5)


def test_a_difference_beyond_rounding_is_named_and_one_of_16_bits_is_not(caplog):
    caplog.set_level(logging.WARNING)
    assert examine(shift=0.05).logprobs == pytest.approx(0.05, abs=1e-5)
    (record,) = caplog.records
    assert "model_type='gaussian_mlp': prev_logprobs" in record.message
    assert "off by 0.05" in record.message
    caplog.clear()
    examine("++actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16", shift=0.05)
    assert not any("logprobs" in record.message for record in caplog.records)


def test_the_first_batch_reports_what_was_seen_and_the_next_do_not():
    of = settings(asynchrony={"mode": "train"})
    worker = learner(of)
    trained = learner_of(worker, of, examined=True)
    found = train_pieces(trained, (pieces(of, acted(worker, of), batch=batch) for batch in range(2)))
    assert found[0]["train/premise/logprobs"] < 1e-6
    assert "train/premise/logprobs" not in found[1]

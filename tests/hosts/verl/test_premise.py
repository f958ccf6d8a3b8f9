"""The check of the first batch by veRL's engine: a policy that is the one that acted, and others."""

import logging

import pytest

pytest.importorskip("verl", reason="needs veRL")

import torch

from rlinf_async.core.premise import MAX_LOGPROB_DIFFERENCE, Premise
from tests.hosts.verl.engines import learner, learner_of, pieces, rollout, settings, training_of
from tests.making import accept

pytestmark = pytest.mark.verl

NAMED = r"vla\.model\.model_type='gaussian_mlp'"


def acted(worker, of, *, shift=0.0, bias=0.0):
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
    fields["prev_values"] = said["values"].reshape(steps + 1, width) + bias
    return fields


def examine(*overrides, mode="train", version=0, estimator="gae", **off):
    of = settings(asynchrony={"mode": mode}, estimator=estimator)
    worker = learner(of, *overrides)
    training = training_of(worker, of, examined=True)
    fields = acted(worker, of, **off)
    fields["versions"] = fields["versions"] + version
    training.begin(0)
    with training.working():
        training.rollout(pieces(of, fields))
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


def test_values_that_do_not_come_back_stay_as_they_were_stored(caplog):
    caplog.set_level(logging.WARNING)
    of = settings(asynchrony={"mode": "train"})
    worker = learner(of)
    training = training_of(worker, of, examined=True)
    stored = acted(worker, of, bias=0.7)
    training.begin(0)
    with training.working():
        fields = training.rollout(pieces(of, stored))
        training.anchor(fields)
    assert training.premise.keeps_values
    assert torch.equal(fields["prev_values"], stored["prev_values"])
    assert "values of the first batch" in caplog.records[0].message


def test_nothing_is_concluded_from_samples_of_older_policies_or_of_values_that_nobody_has():
    assert examine(shift=9.0, bias=9.0, version=-1).metrics == {"premise/logprobs": 0, "premise/values": 0}
    assert not examine("algorithm.adv_estimator=gpg", estimator="gpg", bias=9.0).keeps_values


def test_the_first_batch_reports_what_was_seen_and_the_next_do_not():
    of = settings(asynchrony={"mode": "train"})
    worker = learner(of)
    trained = learner_of(worker, of, examined=True)
    found = []
    for batch in range(2):
        trained.begin(batch)
        accept(trained, pieces(of, acted(worker, of), batch=batch))
        found.append(trained.finish())
    assert found[0]["train/premise/logprobs"] < 1e-6
    assert "train/premise/logprobs" not in found[1]


def test_without_measured_ratios_the_check_is_left_out():
    of = settings(asynchrony={"mode": "train", "advanced": {"measure_ratios": False}})
    assert training_of(learner(of), of, examined=True).premise == Premise()

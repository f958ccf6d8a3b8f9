"""The anchor of a batch and the premise of a run, with consistent policies and others."""

import logging
from types import SimpleNamespace

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.premise import MAX_LOGPROB_DIFFERENCE, Premise
from rlinf_async.hosts.kit.scoring import ScoringTraining

STEPS, WIDTH, CHUNKS, DIM = 3, 4, 5, 7


class Training(ScoringTraining):
    """Scores what it was given as it was stored, but for `shift` and `bias`."""

    def __init__(self, *, shift=0.0, bias=0.0, critic=True, half=False, micro_batch=5, **block):
        asynchrony = AsyncConfig.from_mapping({"mode": "train"} | block)
        settings = SimpleNamespace(asynchrony=asynchrony, micro_batch_size=micro_batch)
        rank = SimpleNamespace(premise=None)
        super().__init__(rank, settings, inputs=HeldInputs(), critic=critic, model="model='a toy'")
        self.shift, self.bias, self.half, self.sizes = shift, bias, half, []

    def passes(self, parts, *, values):
        for part in parts:
            inputs = part["forward_inputs"]
            self.sizes.append(len(inputs["values"]))
            output = {"logprobs": inputs["logprobs"] + self.shift}
            yield output | ({"values": inputs["values"].flatten() + self.bias} if values else {})

    def is_half(self):
        return self.half

    def summed(self, sums):
        return sums


def rollout(version=0):
    draw = torch.Generator().manual_seed(1)
    logprobs = torch.randn(STEPS, WIDTH, CHUNKS, DIM, generator=draw)
    values = torch.randn(STEPS + 1, WIDTH, 1, generator=draw)
    return {
        "forward_inputs": {"logprobs": logprobs, "values": values[:-1]},
        "bootstrap_inputs": {"logprobs": torch.full_like(logprobs[:1], torch.nan), "values": values[-1:]},
        "prev_logprobs": logprobs,
        "prev_values": values,
        "versions": torch.full((*logprobs.shape[:2], 1), float(version)),
    }


def examined(*, version=0, **off):
    training = Training(**off)
    training.look_at(rollout(version))
    return training.premise


def test_a_policy_that_is_consistent_passes_in_silence(caplog):
    premise = examined()
    assert (premise.logprobs, premise.values, premise.keeps_values) == (0.0, 0.0, False)
    assert caplog.records == []


def test_values_that_do_not_come_back_stay_as_they_were_stored_and_the_run_says_so(caplog):
    training, fields = Training(bias=0.5), rollout()
    training.look_at(fields)
    training.anchor(fields)
    stored = rollout()["prev_values"]
    assert training.premise.keeps_values
    # A pass has as many samples as a micro-batch.
    expected = 0.5 / stored[:-1].flatten()[:5].square().mean().sqrt().item()
    assert training.premise.values == pytest.approx(expected)
    assert torch.equal(fields["prev_values"], stored)
    (record,) = caplog.records
    for words in ("a toy", "prev_values", f"{training.premise.values:.0%}"):
        assert words in record.message


@pytest.mark.parametrize("half", [False, True])
def test_a_difference_beyond_rounding_is_named_and_one_of_16_bits_is_not(half, caplog):
    caplog.set_level(logging.WARNING)
    assert examined(shift=0.05, half=half).logprobs == pytest.approx(0.05)
    said = ["model='a toy': prev_logprobs" in record.message for record in caplog.records]
    assert said == ([] if half else [True])


def test_other_probabilities_end_the_run():
    with pytest.raises(
        RuntimeError, match=r"model='a toy': prev_logprobs of the first batch.*off by 1\.5 on"
    ):
        examined(shift=MAX_LOGPROB_DIFFERENCE + 0.5)


@pytest.mark.parametrize("case", [{"version": -1, "shift": 9.0}, {"critic": False}])
def test_nothing_is_concluded_from_older_policies_or_from_values_that_nobody_has(case, caplog):
    premise = examined(bias=9.0, **case)
    assert premise.metrics == {"premise/logprobs": 0, "premise/values": 0}
    assert not premise.keeps_values
    assert caplog.records == []


def test_the_first_batch_alone_is_examined_and_none_without_measured_ratios():
    training = Training()
    training.look_at(rollout())
    passes = len(training.sizes)
    training.look_at(rollout())
    assert len(training.sizes) == passes > 0
    assert training._rank.premise is training.premise
    assert Training(advanced={"measure_ratios": False}).premise == Premise()


@pytest.mark.parametrize(("off", "name"), [("shift", "logprobs"), ("bias", "values")])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_anchor_that_is_not_finite_never_reaches_a_loss(off, name, bad):
    training = Training(**{off: bad})
    training.premise = Premise()
    with pytest.raises(FloatingPointError, match=rf"a toy.*100% of the {name}"):
        training.anchor(rollout())


@pytest.mark.parametrize("values", [True, False])
def test_last_observations_are_valued_in_the_passes_of_the_samples(values):
    """A pass of their own would take a GPU almost as long as one over a micro-batch."""
    training, fields = Training(shift=0.5, bias=1.0, critic=values, micro_batch=6), rollout()
    training.premise = Premise()
    stored = fields["prev_values"]
    training.anchor(fields)
    assert training.sizes == ([8, 8] if values else [6, 6])
    assert torch.equal(fields["proximal_logprobs"], fields["prev_logprobs"] + 0.5)
    assert torch.equal(fields["prev_values"], stored + 1.0 if values else stored)

"""What the local learner tells of a batch, and what inference may have scored for it."""

import copy
from dataclasses import replace

import pytest
import torch

from rlinf_async.core.tensors import concatenate, map_tensors, slice_samples
from rlinf_async.hosts.kit.samples import PROXIMAL_FIELD, scoring_inputs
from rlinf_async.hosts.local.learner import local_learner
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.spans import SpanLog
from tests.hosts.test_local_learner import (
    ENVS,
    HORIZON,
    ByDimension,
    learner_of,
    noting_samples,
    opinionated,
    piece,
    policy,
    samples_of,
    settings_of,
)
from tests.making import accept, given

NONE = {"mode": "train", "train": {"correction": "none"}, "advanced": {"accept_bias": True}}
SCORED = {"mode": "full", "rollout": {"shards": 1}}
LOGLINEAR = {"mode": "train", "advanced": {"proximal": "loglinear"}}


def told(learner, *pieces, batch=0):
    learner.begin(batch)
    accept(learner, pieces)
    return learner.finish()


@pytest.mark.parametrize("size", [1, 6])
def test_losses_and_gradients_are_told_as_means_over_the_valid_samples_of_each_optimizer_step(size):
    """Weights stay as they are, so the ratios are 1. A step without a valid sample is one of nothing."""
    model = opinionated(1)
    sizes = {"global_batch_size": size, "micro_batch_size": size, "lr": 1e-12, "value_lr": 1e-12}
    learner = learner_of(settings_of(algorithm="ppo", **sizes), model)
    trained = noting_samples(learner)
    metrics = told(learner, piece(copy.deepcopy(model), ends_at=1))
    losses, norms = [], []
    samples = concatenate(trained)
    for start in range(0, HORIZON * ENVS, size):
        some = slice_samples(samples, start, start + size)
        logprobs, values = model.score(some["forward_inputs"])
        errors = some["returns"] - values
        each = errors**2 / 2 - some["advantages"] * torch.exp(logprobs - logprobs.detach())
        valid = int(some["valid"].sum())
        loss = (each * some["valid"]).sum() / max(1, valid)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        losses.append(loss.item())
        norms.append(torch.cat([grad.flatten() for grad in grads]).norm().item())
    for name, expected in {"loss": losses, "actor/grad_norm": norms}.items():
        assert metrics[f"train/{name}"] == pytest.approx(sum(expected) / len(expected), rel=1e-4)


@pytest.mark.parametrize("cls", [None, ByDimension])
def test_without_a_correction_the_policy_is_told_to_have_moved_from_the_one_that_acted(cls):
    classes = (cls,) if cls else ()
    current = opinionated(1, *classes)
    before, given = copy.deepcopy(current), piece(policy(0, *classes), batch=1, acted=0, ends_at=HORIZON)
    metrics = told(learner_of(settings_of(NONE), current), given, batch=1)
    with torch.no_grad():
        scored, _ = before.score(given.payload["forward_inputs"])
        moved = given.payload["prev_logprobs"] - scored
    assert abs(moved.mean().item()) > 0.01
    assert metrics["train/approx_kl"] == pytest.approx(moved.mean().item(), rel=1e-4)


@pytest.mark.parametrize("cls", [None, ByDimension])
def test_a_batch_that_inference_has_scored_trains_as_one_that_the_learner_scores(cls):
    classes = (cls,) if cls else ()
    one, left = piece(policy(0, *classes)), []
    for scored in (False, True):
        current = opinionated(1, *classes)
        if scored:
            inputs = scoring_inputs(one.payload).samples
            with torch.no_grad():
                logprobs, values = current.score(inputs["forward_inputs"])
            assert len(logprobs) == len(values) == (HORIZON + 1) * ENVS
            scores = {"logprobs": logprobs, "values": values}
            shaped = map_tensors(lambda tensor: tensor.unflatten(0, (-1, ENVS)), scores)
            one = replace(one, scores=given(shaped))
        settings = settings_of(SCORED)
        samples = samples_of(learner_of(settings, current), one)
        assert not torch.equal(samples[PROXIMAL_FIELD], samples["prev_logprobs"])
        inputs = samples.pop("forward_inputs").values()
        left.append([*inputs, *samples.values(), *(one.detach() for one in current.parameters())])
    for learnt, helped in zip(*left, strict=True):
        torch.testing.assert_close(learnt, helped, rtol=1e-5, atol=1e-6)


def test_micro_batches_and_optimizer_steps_are_in_the_record_of_the_run(tmp_path):
    sizes = {"global_batch_size": HORIZON * ENVS // 2, "micro_batch_size": HORIZON * ENVS // 4}
    learner = local_learner(settings_of(**sizes), policy(), BusyMeter(), spans=SpanLog(tmp_path))
    told(learner, piece(policy()))
    kinds = sorted(span["kind"] for span in read_spans(tmp_path))
    assert kinds == ["micro-batch"] * 4 + ["optimizer step"] * 2


def test_gradients_that_are_not_finite_and_end_the_run_are_told_with_their_batch():
    learner = learner_of(settings_of({"advanced": {"non_finite": "stop"}}), policy())
    bad = piece(opinionated(1), batch=3)
    bad.payload["rewards"][0, 0] = float("nan")
    with pytest.raises(RuntimeError, match=r"not finite.* batch 3,.*async\.advanced\.non_finite=stop"):
        told(learner, bad, batch=3)


@pytest.mark.parametrize("block", [LOGLINEAR, {"mode": "train"}])
def test_ratios_are_measured_with_scores_that_are_there_already(block):
    training = learner_of(settings_of(block), opinionated(1)).training
    given = piece(policy())
    training.begin(0)
    rollout = training.rollout([given])
    training.anchor(rollout)
    inputs, staleness, scores = training.probe_samples(rollout)
    expected = given.payload["forward_inputs"]["states"].flatten(0, 1)
    assert torch.equal(inputs["forward_inputs"]["states"], expected)
    assert staleness.tolist() == [0] * (HORIZON * ENVS)
    if block is LOGLINEAR:
        assert scores is None
    else:
        with torch.no_grad():
            expected = training.score(inputs)
        for found, each in zip(scores, expected, strict=True):
            torch.testing.assert_close(found, each)

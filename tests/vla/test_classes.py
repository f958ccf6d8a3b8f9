"""RLinf's own model classes, tiny and random, between our inference rank and our learner.

`make test-vla` runs them; CONTRIBUTING.md says what they need.
"""

import gc
import random
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf.models import get_model
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker

from benchmarks.learning.flow_policy import transition
from rlinf_async.core.scores import Scored
from rlinf_async.core.tensors import in_parts, map_tensors
from rlinf_async.hosts.kit.ratios import scored_in
from rlinf_async.hosts.kit.samples import SAMPLE_FIELDS, samples_of
from rlinf_async.hosts.rlinf.learner import forward
from rlinf_async.hosts.rlinf.models import scored_by
from tests.hosts.rlinf.passes import compare, judge
from tests.vla.classes import answers, inference, learner, observations, off_by, rescored, rollout

SIZE = 4


@pytest.fixture(scope="module")
def built(case, tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    with case.environment(place):
        random.seed(0)
        torch.manual_seed(0)
        cfg = case.configure(place)
        yield get_model(cfg.actor.model), cfg
    gc.collect()


def observed(case, size=SIZE, seed=1):
    return observations(size, seed=seed, side=case.side)


def logprobs(model, cfg, fields, micro_batch_size):
    scored = list(forward(learner(model, cfg), in_parts(micro_batch_size, samples_of(fields)), values=False))
    return torch.cat([output["logprobs"].float() for output in scored])


@pytest.fixture(scope="module")
def acted(case, built):
    """Two decisions of one shard and the observation after them."""
    return rollout(inference(*built), [observed(case, seed=seed) for seed in range(3)])


def test_the_learner_gives_back_what_inference_stored(case, built, acted):
    fields, last = acted
    again = rescored(*built, fields, last, micro_batch_size=SIZE, values=case.values)
    stored = again.get("acted_logprobs", fields["prev_logprobs"])
    assert stored.abs().max() > 0.1
    assert off_by(again["proximal_logprobs"], stored.reshape(again["proximal_logprobs"].shape)) <= 1e-6
    if case.values and case.comes_back:
        assert off_by(again["prev_values"], fields["prev_values"]) <= 1e-6


def test_samples_say_which_denoise_steps_are_scored_and_explain_does_too(case, built, acted):
    fields, _ = acted
    assert scored_in(fields["forward_inputs"]) == Scored(steps=case.steps or 1, joint=case.joint)
    said = scored_by(OmegaConf.to_container(built[1], resolve=True))
    if case.steps is None:
        assert said == ""
    elif case.joint:
        assert said.startswith(f"of the mean over {case.steps} ")
    else:
        assert said.startswith((f"of one of {case.steps} ", "of one of K "))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("noisy", [True, False])
def test_the_chains_of_the_check_are_those_of_the_class(case, built, monkeypatch, number, noisy):
    if case.name != "pi0":
        pytest.skip("the check of benchmarks/learning/flow-weight.md is of pi0's formulas")
    model, _ = built
    x, velocity = torch.randn(2, 3, 50, 32)
    monkeypatch.setattr(model, "get_velocity", lambda *_: (velocity, torch.zeros(3, 50, 1024)))
    mean, deviation, *_ = model.sample_mean_var_val(
        x, number, torch.zeros(3, 8), None, None, "flow_sde" if noisy else "flow_ode", 4, False
    )
    step, has_noise = torch.full((3 * 1600,), number), torch.full((3 * 1600,), noisy)
    expected, spread = transition(x.reshape(-1, 1), velocity.reshape(-1, 1), step, noisy=has_noise)
    assert torch.allclose(mean.flatten(), expected.flatten(), atol=1e-6)
    assert torch.allclose(deviation.flatten(), spread.flatten(), atol=1e-6)


def test_the_first_batch_shows_whether_values_come_back(case, built, acted):
    if not case.values:
        pytest.skip("no critic")
    fields, _ = acted
    said = []
    marked = {**fields, "versions": torch.zeros(*fields["prev_logprobs"].shape[:2], 1)}
    sums = compare(learner(*built), marked, 0, most=SIZE, values=True)
    premise = judge(sums, built[1], said.append)
    assert premise.logprobs <= 1e-6
    assert premise.keeps_values is not case.comes_back
    assert len(said) == int(premise.keeps_values)


def test_a_sample_is_scored_alone_as_in_a_batch(case, built, acted):
    fields, _ = acted
    first = map_tensors(lambda tensor: tensor[:1], {name: fields[name] for name in SAMPLE_FIELDS})
    alone, together = logprobs(*built, first, 1), logprobs(*built, first, SIZE)
    assert (alone - together).abs().mean() <= case.rounding / 10
    assert off_by(alone, together) <= case.rounding * 10


def test_a_padded_batch_stores_what_an_unpadded_one_scores(case, built):
    model, cfg = built
    shown = [observed(case, SIZE - 1), observed(case, SIZE - 1, seed=2)]
    fields, _ = rollout(inference(model, cfg, buckets=(SIZE,)), shown)
    assert all(len(value[0]) == SIZE - 1 for value in fields["forward_inputs"].values())
    actor = learner(model, cfg)
    (output,) = forward(actor, [samples_of(fields)], values=False)
    stored = output.get("prev_logprobs", fields["prev_logprobs"].flatten(0, 1))
    difference = output["logprobs"].float().flatten() - stored.float().flatten()
    assert difference.abs().mean() <= case.rounding / 10


def test_ranks_with_the_same_seed_act_the_same(case, built, monkeypatch):
    model, cfg = built
    monkeypatch.setattr(MultiStepRolloutWorker, "init_worker", lambda self: None)

    def act():
        worker = inference(model, cfg)
        worker.init_worker()
        return [answers(worker, observed(case))[0]["actions"] for _ in range(2)]

    first = act()
    random.seed(7)
    assert all(torch.equal(one, other) for one, other in zip(first, act(), strict=True))
    assert not torch.equal(first[0], first[1])


def test_pictures_do_not_travel_back(case, built):
    model, cfg = built
    (answer,) = answers(inference(model, cfg), observed(case))
    assert answer["echoes"] == case.pictures
    assert not answer["echoes"].keys() & answer["forward_inputs"].keys()


def test_evaluation_has_no_log_probabilities(case, built):
    model, cfg = built
    (answer,) = answers(inference(model, cfg), observed(case), mode="eval")
    assert answer.keys() == {"version", "actions"}
    assert len(answer["actions"]) == SIZE


def test_tokens_outside_of_the_top_k_end_the_run_by_name(case, built):
    if case.name != "OpenVLA-OFT":
        pytest.skip("samples no tokens")
    model, cfg = built
    cfg = cfg.copy()
    cfg.rollout.sampling_params.top_k = 50
    fields, last = rollout(inference(model, cfg), [observed(case), observed(case, seed=2)])
    assert fields["prev_logprobs"].isfinite().all()
    with pytest.raises(FloatingPointError, match=r"'openvla_oft'.*% of the logprobs"):
        rescored(model, cfg, fields, last, micro_batch_size=SIZE, values=False)


def test_a_decision_sends_as_many_bytes_as_the_page_says(case, built):
    if case.answer_bytes is None:
        return
    one = observations(1, side=case.side)
    (answer,) = answers(inference(*built), one)
    assert nbytes(one) == 393_248
    assert nbytes(answer) == case.answer_bytes
    page = (Path(__file__).parents[2] / "benchmarks" / "micro" / "README.md").read_text()
    assert f"| {case} | 393,248 | {case.answer_bytes:,} |" in page


def nbytes(tree):
    if isinstance(tree, torch.Tensor):
        return tree.nbytes
    return sum(nbytes(value) for value in tree.values()) if isinstance(tree, dict) else 0

"""What RLinf's StarVLA scores with a flow-matching head depends on how long it pads prompts.

When it acts, the head attends to the tokens of the prompt. Stored prompts are padded to one length, and when
they are scored the head attends to the padding as well: nothing tells it the mask of the backbone.
"""

from importlib.util import find_spec

import pytest
import torch

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf.models import get_model

from tests.hosts.rlinf.passes import compare, judge
from tests.vla import sources, tiny_starvla
from tests.vla.cases import config
from tests.vla.classes import inference, learner, observations, rollout

FRAMEWORK = "QwenGR00T"
pytestmark = [
    pytest.mark.skipif(find_spec("qwen_vl_utils") is None, reason="qwen_vl_utils: make test-vla"),
    pytest.mark.skipif(sources.source("starvla") is None, reason=sources.MISSING.format("starvla")),
]


def checked(place, prompt):
    """The check of the first batch, in float32, at the weights that acted; and what it warns of."""
    tiny_starvla.write_checkpoint(place, FRAMEWORK, prompt=prompt)
    cfg = config(tiny_starvla.starvla_block(place, FRAMEWORK, "fp32"), logprob_type="token_level")
    torch.manual_seed(0)
    model = get_model(cfg.actor.model)
    fields, _ = rollout(inference(model, cfg), [observations(2, seed=seed) for seed in range(2)])
    fields["versions"] = torch.zeros(*fields["prev_logprobs"].shape[:2], 1)
    said = []
    sums = compare(learner(model, cfg), fields, 0, most=2, values=True)
    return judge(sums, cfg, said.append), said


def test_a_prompt_that_is_not_padded_is_scored_as_it_was_sampled(tmp_path):
    premise, said = checked(tmp_path, tiny_starvla.PROMPT)
    assert premise.logprobs <= 1e-6
    assert not said


def test_a_prompt_that_rlinf_pads_is_scored_otherwise_and_the_run_says_so(tmp_path):
    premise, said = checked(tmp_path, None)
    assert premise.logprobs > 0.1
    assert "are off by" in said[0]
    assert not premise.keeps_values

"""What RLinf's StarVLA scores with a flow-matching head depends on how long it pads prompts.

When it acts, the head attends to the tokens of the prompt. Stored prompts are padded to one length, and when
they are scored the head attends to the padding as well: nothing tells it the mask of the backbone.
"""

from importlib.util import find_spec

import pytest
import torch

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf.models import get_model

from tests.vla import sources, tiny_starvla
from tests.vla.classes import config, inference, observations, off_by, rescored, rollout

FRAMEWORK = "QwenGR00T"
pytestmark = [
    pytest.mark.skipif(find_spec("qwen_vl_utils") is None, reason="qwen_vl_utils: make test-vla"),
    pytest.mark.skipif(sources.source("starvla") is None, reason=sources.MISSING.format("starvla")),
]


def difference(place, prompt):
    """Of log-probabilities that are stored and those that are scored, in float32 and at the same weights."""
    tiny_starvla.write_checkpoint(place, FRAMEWORK, prompt=prompt)
    cfg = config(tiny_starvla.starvla_block(place, FRAMEWORK, "fp32"), logprob_type="token_level")
    torch.manual_seed(0)
    model = get_model(cfg.actor.model)
    fields, last = rollout(inference(model, cfg), [observations(2, seed=seed) for seed in range(2)])
    scored = rescored(model, cfg, fields, last, micro_batch_size=2, values=True)["proximal_logprobs"]
    return off_by(scored, fields["prev_logprobs"].reshape(scored.shape))


def test_a_prompt_that_is_not_padded_is_scored_as_it_was_sampled(tmp_path):
    assert difference(tmp_path, tiny_starvla.PROMPT) <= 1e-6


def test_a_prompt_that_rlinf_pads_is_scored_otherwise(tmp_path):
    assert difference(tmp_path, None) > 0.1

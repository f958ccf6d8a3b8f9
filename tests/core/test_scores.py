import re

import pytest
import torch

from rlinf_async.core.scores import joined

MODEL = "actor.model.model_type=mlp"


def test_passes_over_parts_are_one_float32_tensor_in_order():
    passes = [{"values": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}, {"values": torch.tensor([3.0])}]
    scores = joined(passes, "values", model=MODEL)
    assert (scores.tolist(), scores.dtype) == ([1.0, 2.0, 3.0], torch.float32)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_with_their_share_and_the_model(wrong):
    passes = [{"logprobs": torch.tensor([0.0, 1.0])}, {"logprobs": torch.tensor([2.0, wrong])}]
    said = (
        f"{MODEL}: 25% of the logprobs of this batch, scored again before the update, are not finite; nothing"
    )
    with pytest.raises(FloatingPointError, match=re.escape(said)):
        joined(passes, "logprobs", model=MODEL)

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.scores import joined, pass_size

MODEL = "actor.model.model_type=mlp"


def test_passes_over_parts_are_one_float32_tensor_in_order():
    passes = [{"values": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}, {"values": torch.tensor([3.0])}]
    scores = joined(passes, "values", first=3, model=MODEL)
    assert (scores.tolist(), scores.dtype) == ([1.0, 2.0, 3.0], torch.float32)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_with_their_share_and_the_model(wrong):
    passes = [{"logprobs": torch.tensor([0.0, 1.0])}, {"logprobs": torch.tensor([2.0, wrong])}]
    said = (
        f"{MODEL}: 25% of the logprobs of this batch, scored again before the update, are not finite; nothing"
    )
    with pytest.raises(FloatingPointError, match=re.escape(said)):
        joined(passes, "logprobs", first=4, model=MODEL)


def test_what_is_behind_the_samples_is_not_looked_at():
    passes = [{"logprobs": torch.tensor([0.0, 1.0])}, {"logprobs": torch.tensor([2.0, float("nan")])}]
    assert joined(passes, "logprobs", first=3, model=MODEL).tolist() == [0.0, 1.0, 2.0]


@given(st.integers(1, 300), st.integers(0, 100), st.integers(1, 128))
def test_what_is_behind_the_samples_takes_no_passes_of_its_own(samples, beyond, most):
    size = pass_size(samples, beyond, most=most)
    passes = math.ceil(samples / most)
    assert math.ceil((samples + beyond) / size) <= passes
    # No larger than it has to be for that.
    assert (size - 1) * passes < samples + beyond
    if not beyond:
        assert size <= most

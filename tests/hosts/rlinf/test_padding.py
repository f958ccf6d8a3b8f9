import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.hosts.rlinf.padding import buckets_up_to, pad, padded_size, trim


@given(most=st.integers(1, 300), least=st.integers(1, 300), size=st.integers(1, 300))
def test_every_batch_has_a_bucket_less_than_twice_its_size(most, least, size):
    buckets = buckets_up_to(most, least=least)
    assert buckets == tuple(sorted(set(buckets)))
    assert len(buckets) <= 1 + most.bit_length()
    padded = padded_size(size, buckets)
    assert size <= padded <= max(size, most)
    if size > buckets[0]:
        assert padded <= 2 * size + 1


def test_without_buckets_nothing_is_padded():
    assert padded_size(5, ()) == 5


def test_padding_repeats_the_last_sample_of_every_field_and_trimming_takes_it_away():
    observations = {
        "images": torch.arange(6).view(3, 2),
        "states": np.arange(3),
        "tasks": ["a", "b", "c"],
        "wrist": None,
        "more": {"depth": torch.ones(3, 1)},
    }
    padded = pad(observations, 5)
    assert padded["images"].tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]]
    assert padded["states"].tolist() == [0, 1, 2, 2, 2]
    assert padded["tasks"] == ["a", "b", "c", "c", "c"]
    assert padded["wrist"] is None
    assert padded["more"]["depth"].shape == (5, 1)
    assert torch.equal(trim(padded["images"], 3), observations["images"])
    assert trim({"values": padded["images"], "nothing": None}, 3)["values"].shape == (3, 2)
    assert trim(None, 3) is None


def test_a_copy_survives_that_the_policy_writes_its_next_answer_into_the_same_memory():
    answer = torch.arange(3)
    view, copy = trim(answer, 2), trim({"actions": answer}, 2, copy=True)
    answer.fill_(7)
    assert view.tolist() == [7, 7]
    assert copy["actions"].tolist() == [0, 1]

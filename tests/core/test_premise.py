"""What is compared of a batch before it has changed the weights."""

import torch

from rlinf_async.core.premise import compare

SAMPLES = {"inputs": torch.arange(6.0), "logprobs": torch.zeros(6, 2)}
VERSIONS = torch.tensor([3, 4, 4, 3, 4, 4])


def compared(version, *, most=8, values=False):
    """The sums, and the inputs that were scored."""
    passes = []

    def score(samples):
        passes.append(samples["inputs"].tolist())
        stored = samples["logprobs"]
        pairs = {"logprobs": (stored - 0.5, stored)}
        return pairs | (
            {"values": (torch.full((len(stored),), 2.0), torch.ones(len(stored)))} if values else {}
        )

    sums = compare(SAMPLES, VERSIONS, version, most=most, score=score)
    (inputs,) = passes
    return sums, inputs


def test_only_samples_that_the_version_drew_are_scored_and_no_more_than_one_pass_has():
    assert compared(4)[1] == [1, 2, 4, 5]
    assert compared(4, most=3)[1] == [1, 2, 4]


def test_differences_are_summed_over_every_log_probability_and_value():
    sums, _ = compared(4, values=True)
    assert (sums["logprobs/off"], sums["logprobs/count"]) == (4.0, 8)
    assert (sums["values/off"], sums["values/stored"], sums["values/count"]) == (4.0, 4.0, 4)
    assert "values/off" not in compared(4)[0]


def test_a_rank_without_samples_of_the_version_takes_part_in_the_pass_and_counts_nothing():
    sums, inputs = compared(7)
    assert len(inputs) == 1
    assert set(sums.values()) == {0.0}

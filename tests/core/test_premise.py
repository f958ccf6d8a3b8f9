"""What is compared of a batch before it has changed the weights."""

import math

import pytest
import torch

from rlinf_async.core.premise import (
    FULL_PRECISION,
    HALF_PRECISION,
    MAX_LOGPROB_DIFFERENCE,
    Premise,
    compare,
    judge,
)

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
    damaged = compare(
        SAMPLES,
        VERSIONS,
        7,
        most=8,
        score=lambda samples: {"logprobs": (samples["logprobs"] * math.nan,) * 2},
    )
    assert set(damaged.values()) == {0.0}


def judged(*, half=False, **sums):
    """The premise that follows, and what was said of it."""
    said = []
    premise = judge(sums, model="actor.model=mlp", half=half, warn=said.append)
    return premise, said


def logprobs(off):
    """Sums of four log-probabilities that are so far off on average."""
    return {"logprobs/off": 4 * off, "logprobs/stored": 8.0, "logprobs/count": 4.0}


def values(off):
    """Sums of values whose difference has so large a root mean square, in units of theirs."""
    return {"values/off": 9.0 * off**2, "values/stored": 9.0, "values/count": 4.0}


def test_what_rounding_explains_is_said_nothing_of():
    assert judged(**logprobs(0.004), **values(0.006)) == (
        Premise(logprobs=0.004, values=pytest.approx(0.006), keeps_values=False),
        [],
    )
    assert judged(**logprobs(0.004)) == (Premise(logprobs=0.004), [])


@pytest.mark.parametrize(("half", "tolerance"), [(False, FULL_PRECISION), (True, HALF_PRECISION)])
def test_what_rounding_does_not_explain_is_said_with_both_numbers(half, tolerance):
    assert judged(half=half, **logprobs(tolerance.logprobs))[1] == []
    premise, (warning,) = judged(half=half, **logprobs(2 * tolerance.logprobs))
    assert premise.logprobs == pytest.approx(2 * tolerance.logprobs)
    assert warning.startswith("actor.model=mlp: prev_logprobs of the first batch")
    assert (
        f"off by {2 * tolerance.logprobs:.3g} on average, where rounding explains {tolerance.logprobs:g}"
        in (warning)
    )


@pytest.mark.parametrize(("half", "tolerance"), [(False, FULL_PRECISION), (True, HALF_PRECISION)])
def test_values_that_are_not_those_of_inference_are_kept_as_they_were_stored(half, tolerance):
    assert not judged(half=half, **logprobs(0.0), **values(0.99 * tolerance.values))[0].keeps_values
    premise, (warning,) = judged(half=half, **logprobs(0.0), **values(2.0))
    assert premise.keeps_values
    assert premise.values == pytest.approx(2.0)
    assert warning.startswith("actor.model=mlp: prev_values of the first batch")
    assert f"off by 200% of their size, where rounding explains {tolerance.values:.0%}" in warning


def test_values_that_were_stored_as_zeros_are_kept_where_the_learner_has_others():
    """As of a model whose inference gives no values: the share of their size that they are off is endless."""
    sums = {"values/off": 4.0, "values/stored": 0.0, "values/count": 4.0}
    premise, _ = judged(**logprobs(0.0), **sums)
    assert premise.keeps_values
    assert math.isfinite(premise.values)
    assert not judged(**logprobs(0.0), **{**sums, "values/off": 0.0})[0].keeps_values


@pytest.mark.parametrize("off", [1.01 * MAX_LOGPROB_DIFFERENCE, math.nan])
def test_another_policy_than_that_which_acted_ends_the_run(off):
    with pytest.raises(RuntimeError, match="do not hold the same policy") as raised:
        judged(**logprobs(off))
    assert str(raised.value).startswith("actor.model=mlp: prev_logprobs of the first batch")
    assert f"off by {off:.3g} on average" in str(raised.value)


def test_a_policy_that_is_as_far_off_as_may_be_goes_on_with_a_warning():
    assert len(judged(**logprobs(MAX_LOGPROB_DIFFERENCE))[1]) == 1


def test_values_that_are_no_numbers_are_not_taken_over():
    assert judged(**logprobs(0.0), **values(math.nan))[0].keeps_values


def test_a_run_that_begins_with_samples_of_older_policies_is_not_judged():
    assert judged(**{"logprobs/off": 0.0, "logprobs/count": 0.0}) == (Premise(), [])


def test_metrics_are_what_was_found():
    assert Premise(logprobs=0.5, values=0.25).metrics == {"premise/logprobs": 0.5, "premise/values": 0.25}


def test_values_are_compared_by_their_own_size_however_small_it_is():
    premise, _ = judged(**logprobs(0.0), **{"values/off": 1e-6, "values/stored": 1e-6})
    assert premise == Premise(logprobs=0.0, values=1.0, keeps_values=True)

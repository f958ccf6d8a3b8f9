from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.streaming import MAX_SPREAD_RATIO, AdvantageScale, MicroBatchStream, shares


def samples(start, stop):
    """Numbered samples, nested as RLinf's are."""
    numbers = torch.arange(start, stop)
    return {"number": numbers, "inputs": {"twice": 2 * numbers[:, None]}, "absent": None}


def cut(stream, boundaries):
    """The micro-batches of samples that arrive in pieces with these boundaries."""
    return [
        (micro_batch.samples["number"].tolist(), micro_batch.steps)
        for start, stop in pairwise(boundaries)
        for micro_batch in stream.add(samples(start, stop))
    ]


@settings(deadline=None, max_examples=150)
@given(
    size=st.integers(1, 6),
    per_step=st.integers(1, 4),
    steps=st.integers(1, 4),
    at=st.sets(st.integers(1, 95)),
)
def test_any_partition_of_the_same_samples_gives_the_same_micro_batches_and_steps(size, per_step, steps, at):
    total = size * per_step * steps
    boundaries = [0, *sorted(cut_at for cut_at in at if cut_at < total), total]
    stream = MicroBatchStream(micro_batch_size=size, micro_batches_per_step=per_step)
    micro_batches = cut(stream, boundaries)
    stream.finish()
    expected = np.arange(total).reshape(-1, size).tolist()
    assert [numbers for numbers, _ in micro_batches] == expected
    assert [last for _, last in micro_batches] == ([False] * (per_step - 1) + [True]) * steps


def test_every_field_of_a_sample_stays_with_it_across_pieces():
    stream = MicroBatchStream(micro_batch_size=4, micro_batches_per_step=1)
    list(stream.add(samples(0, 3)))
    (micro_batch,) = stream.add(samples(3, 5))
    assert torch.equal(micro_batch.samples["inputs"]["twice"][:, 0], 2 * micro_batch.samples["number"])
    assert micro_batch.samples["absent"] is None
    assert stream.pending == 1


def test_samples_that_fill_no_micro_batch_are_an_error_with_their_number():
    stream = MicroBatchStream(micro_batch_size=4, micro_batches_per_step=1)
    assert cut(stream, [0, 6]) == [([0, 1, 2, 3], True)]
    with pytest.raises(ValueError, match=r"left 2 samples and 0 micro-batches over.*micro_batch_size=4"):
        stream.finish()


def test_micro_batches_that_fill_no_step_are_an_error_with_their_number():
    stream = MicroBatchStream(micro_batch_size=2, micro_batches_per_step=3)
    cut(stream, [0, 8])
    with pytest.raises(ValueError, match="left 0 samples and 1 micro-batches over"):
        stream.finish()


def test_the_next_batch_counts_from_its_own_start():
    stream = MicroBatchStream(micro_batch_size=1, micro_batches_per_step=2)
    for _ in range(2):
        assert [last for _, last in cut(stream, [0, 4])] == [False, True, False, True]
        stream.finish()


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0)])
def test_sizes_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="must be at least 1"):
        MicroBatchStream(micro_batch_size=wrong[0], micro_batches_per_step=wrong[1])


@settings(deadline=None, max_examples=150)
@given(parts=st.integers(1, 7), each=st.integers(1, 40), at=st.sets(st.integers(1, 279)))
def test_equal_parts_of_a_batch_grow_alike_whatever_its_pieces_are(parts, each, at):
    total = parts * each
    boundaries = [0, *sorted(cut_at for cut_at in at if cut_at < total), total]
    given_out = np.array([shares(before, after, parts) for before, after in pairwise(boundaries)])
    assert given_out.min() >= 0
    assert given_out.sum(axis=1).tolist() == np.diff(boundaries).tolist()
    grown = given_out.cumsum(axis=0)
    assert (grown.max(axis=1) - grown.min(axis=1)).max() <= 1
    assert (grown[:, 0] == grown.min(axis=1)).all()
    assert grown[-1].tolist() == [each] * parts


def test_advantages_are_scaled_by_the_statistics_of_all_valid_ones_of_the_batch_before():
    rng = np.random.default_rng(0)
    scale = AdvantageScale()
    raw = [rng.normal(3, 2, (5, width, 1)).astype(np.float32) for width in (2, 4, 1)]
    masks = [rng.random((5, width, 1)) < 0.7 for width in (2, 4, 1)]
    for advantages, mask in zip(raw, masks, strict=True):
        scale.observe(torch.from_numpy(advantages), torch.from_numpy(mask))
    scale.close()
    valid = np.concatenate([advantages[mask] for advantages, mask in zip(raw, masks, strict=True)])
    new = rng.normal(0, 1, (3, 2)).astype(np.float32)
    expected = (new - valid.mean()) / (valid.std(ddof=1) + 1e-5)
    assert np.allclose(scale.apply(torch.from_numpy(new)).numpy(), expected, atol=1e-5)


def normalised_in_pieces(before, pieces):
    scale = AdvantageScale()
    scale.observe(before, None)
    scale.close()
    parts = []
    for piece in pieces:
        scale.observe(piece, None)
        parts.append(scale.apply(piece))
    return torch.cat(parts).double()


@settings(deadline=None, max_examples=200)
@given(
    spread=st.sampled_from([0.0, 1e-6, 0.005, 1.0, 100.0]),
    before=st.sampled_from([0.0, 1e-6, 0.005, 1.0, 100.0]),
    centre=st.sampled_from([0.0, 1.0, -30.0]),
    successes=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=8),
    seed=st.integers(0, 999),
)
def test_no_batch_before_makes_advantages_much_larger_than_their_own_normalisation(
    spread, before, centre, successes, sizes, seed
):
    draw = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    batch = centre + spread * torch.randn(total, generator=draw)
    batch[torch.randperm(total, generator=draw)[:successes]] += 1.0
    found = normalised_in_pieces(before * torch.randn(640, generator=draw), batch.split(sizes))
    # A batch of n, normalised by itself, has a root mean square of 1 and no value above sqrt(n - 1).
    assert float(found.abs().max()) <= MAX_SPREAD_RATIO * total**0.5 * 1.001
    assert float(found.square().mean().sqrt()) <= MAX_SPREAD_RATIO * len(sizes) ** 0.5 * 1.001


def test_first_successes_after_a_batch_that_failed_throughout_stay_of_order_one():
    draw = torch.Generator().manual_seed(0)
    batch = 0.005 * torch.randn(640, generator=draw)
    batch[torch.randperm(640, generator=draw)[:20]] += 1.0
    own = (batch - batch.mean()) / batch.std()
    for before in (torch.zeros(640), 0.005 * torch.randn(640, generator=draw)):
        found = normalised_in_pieces(before, batch.split(64))
        assert float(found.square().mean().sqrt()) < 1.5 * MAX_SPREAD_RATIO
        assert float(found.abs().max()) < 2 * MAX_SPREAD_RATIO * float(own.abs().max())


@pytest.mark.parametrize("spread", [0.3, 1.0, 1.5])
def test_a_batch_of_up_to_twice_the_spread_is_normalised_by_the_batch_before_alone(spread):
    draw = torch.Generator().manual_seed(1)
    before, batch = torch.randn(5000, generator=draw), spread * torch.randn(640, generator=draw)
    expected = (batch - before.mean()) / (before.std() + 1e-5)
    found = normalised_in_pieces(before, batch.split(64))
    assert torch.allclose(found.float(), expected, atol=1e-6)


def test_a_mask_of_one_column_covers_all_columns():
    scale = AdvantageScale()
    scale.observe(torch.tensor([[1.0, 3.0], [100.0, 200.0]]), torch.tensor([[True], [False]]))
    scale.close()
    assert (scale.mean, scale.std) == (2.0, pytest.approx(2**0.5))


def test_a_scale_is_not_ready_before_a_batch_is_complete():
    scale = AdvantageScale()
    scale.observe(torch.randn(8), None)
    assert not scale.ready
    scale.close()
    assert scale.ready


def test_statistics_of_older_batches_are_forgotten():
    scale = AdvantageScale()
    for centre in (100.0, 0.0):
        scale.observe(torch.tensor([centre - 1.0, centre + 1.0]), None)
        scale.close()
    assert scale.mean == 0.0


def test_a_batch_without_valid_advantages_keeps_the_statistics_before_it():
    scale = AdvantageScale()
    scale.observe(torch.tensor([1.0, 3.0]), None)
    scale.close()
    scale.observe(torch.tensor([7.0, 9.0]), torch.tensor([False, False]))
    scale.close()
    assert (scale.ready, scale.mean) == (True, 2.0)


@given(ranks=st.integers(1, 4), centre=st.sampled_from([0.0, 3.0, -1e4]), seed=st.integers(0, 99))
def test_ranks_that_add_up_their_sums_have_the_scale_of_all_their_advantages(ranks, centre, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 9, ranks)
    parts = [rng.normal(centre, 1 + rank, size).astype(np.float32) for rank, size in enumerate(sizes)]
    every, asked = np.concatenate(parts).astype(np.float64), []
    known = {"count": len(every), "total": every.sum()}
    known["squares"] = np.square(every - every.mean()).sum() if len(every) else 0.0

    def summed(sums):
        asked.append(sums)
        return {name: known[name] for name in sums}

    for part in parts:
        scale = AdvantageScale()
        if len(part):
            scale.observe(torch.from_numpy(part), None)
        scale.close(summed)
        if len(every) > 1:
            assert scale.mean == pytest.approx(every.mean(), abs=1e-5)
            assert scale.std == pytest.approx(every.std(ddof=1))
        assert scale.ready == (len(every) > 1)
    # A rank that has nothing asks for what the others ask for, who would wait for it else.
    each = len(asked) // ranks
    assert [set(sums) for sums in asked] == [set(sums) for sums in asked[:each]] * ranks
    for name in ("count", "total", "squares")[: 3 if len(every) > 1 else 2]:
        added = sum(sums[name] for sums in asked if name in sums)
        assert added == pytest.approx(known[name], rel=1e-4, abs=1e-4)


def test_before_any_advantage_there_is_no_scale_and_one_alone_has_no_spread():
    scale = AdvantageScale()
    scale.close()
    assert (scale.mean, scale.std, scale.ready) == (0.0, 1.0, False)
    scale.observe(torch.tensor([3.0]), None)
    scale.close()
    assert (scale.mean, scale.std, scale.ready) == (0.0, 1.0, False)


def test_what_a_batch_had_of_spread_counts_for_no_other():
    scale = AdvantageScale()
    for values in ([10.0, -10.0], [0.5, -0.5]):
        scale.observe(torch.tensor(values), None)
        scale.close()
    scale.observe(torch.tensor([4.0, -4.0]), None)
    assert scale.divisor == pytest.approx(
        4.0 / MAX_SPREAD_RATIO
    )  # by itself: more than the deviation before, 0.71


def test_the_spread_of_a_batch_is_taken_about_the_mean_of_the_one_before():
    scale = AdvantageScale()
    scale.observe(torch.tensor([1.75, 2.25]), None)  # a mean of 2
    scale.close()
    scale.observe(torch.tensor([7.0, -3.0]), None)
    assert scale.divisor == pytest.approx(5.0 / MAX_SPREAD_RATIO)

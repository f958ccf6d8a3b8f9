import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.left_out import live_rows
from rlinf_async.core.packing import LiveSamples, Packing, passes_over, spread
from rlinf_async.hosts.kit.rank_exchange import Move, evening

FLAGS = st.lists(st.booleans(), min_size=1, max_size=5)
"""Which rows of a micro-batch are live."""


def parts_of(passes):
    """Per pass, (micro-batch, rows) of each part."""
    return [[(part.micro_batch, part.rows.tolist()) for part in one.parts] for one in passes]


def packed(step, *, size, mixes=True, passes=None):
    """The passes over a step of micro-batches, all at once."""
    packing = Packing(size=size, mixes=mixes)
    for flags in step:
        packing.add(torch.tensor(flags))
    found = packing.take(packing.needed if passes is None else passes)
    packing.finish()
    return found


@settings(deadline=None, max_examples=200)
@given(ranks=st.lists(st.lists(FLAGS, min_size=4, max_size=4), min_size=1, max_size=3), eager=st.booleans())
def test_every_live_row_is_in_one_pass_and_all_ranks_make_those_of_the_fullest(ranks, eager):
    packings = [Packing(size=5) for _ in ranks]
    made = [[] for _ in ranks]

    def take(passes):
        for packing, found in zip(packings, made, strict=True):
            found += packing.take(passes)

    for number in range(4):
        for packing, step in zip(packings, ranks, strict=True):
            assert packing.add(torch.tensor(step[number])) == number
        if eager and number < 3:
            take(min(packing.full for packing in packings))
    waited = max(packing.live for packing in packings)
    take(max(packing.needed for packing in packings))
    fullest = max(sum(map(sum, step)) for step in ranks)
    # The last pass, in which ranks sum gradients, is empty if all rows have had theirs.
    expected = passes_over(fullest, 5) + (fullest > 0 and not waited)
    for packing, step, found in zip(packings, ranks, made, strict=True):
        packing.finish()
        assert len(found) == expected
        assert all(one.size <= 5 for one in found)
        rows = [(number, row) for one in parts_of(found) for number, rows in one for row in rows]
        assert rows == [(n, row) for n, flags in enumerate(step) for row, live in enumerate(flags) if live]
        assert {part.micro_batch for one in found for part in one.parts} == {0, 1, 2, 3}


COUNTS = st.lists(st.integers(0, 400), min_size=1, max_size=9)


@settings(deadline=None, max_examples=300)
@given(counts=COUNTS, size=st.integers(1, 100))
def test_ranks_have_equally_many_rows_after_the_fewest_moves_that_can_do_it(counts, size):
    after = list(counts)
    moves = evening(counts, size=size)
    for move in moves:
        assert move.rows > 0
        after[move.giver] -= move.rows
        after[move.taker] += move.rows
    assert sum(after) == sum(counts)
    if not moves:
        even = -(-sum(counts) // len(counts))
        assert max(counts) - even < 0.05 * max(counts) or max(counts) == 0
        assert passes_over(max(counts), size) == passes_over(even, size)
        return
    assert max(after) - min(after) <= 1
    # A rank gives or takes, and no row moves that could have stayed.
    assert not {move.giver for move in moves} & {move.taker for move in moves}
    ceiling = -(-sum(counts) // len(counts))
    full = sum(counts) - (ceiling - 1) * len(counts)
    kept = sorted((count for count in counts), reverse=True)[:full]
    least = sum(max(0, count - ceiling + 1) for count in counts) - sum(count >= ceiling for count in kept)
    assert sum(move.rows for move in moves) == least


def test_a_rank_that_is_hardly_fuller_than_others_keeps_its_rows_unless_that_costs_a_pass():
    assert evening([100, 92], size=40) == []
    assert evening([100, 80], size=40) != []
    assert evening([100, 92], size=48) == [Move(giver=0, taker=1, rows=4)]


@settings(deadline=None, max_examples=200)
@given(step=st.lists(FLAGS, min_size=1, max_size=5), share=st.floats(0, 1))
def test_rows_that_are_given_away_are_the_last_and_all_others_are_in_a_pass(step, share):
    packing = Packing(size=5)
    for flags in step:
        packing.add(torch.tensor(flags))
    count = int(share * packing.live)
    given_away = [(part.micro_batch, row) for part in packing.give(count) for row in part.rows.tolist()]
    found = parts_of(packing.take(packing.needed))
    packing.finish()
    kept = [(number, row) for one in found for number, rows in one for row in rows]
    live = [
        (number, row) for number, flags in enumerate(step) for row, is_live in enumerate(flags) if is_live
    ]
    assert kept == live[: len(live) - count]
    assert sorted(given_away) == live[len(live) - count :]
    # Micro-batches without a live row are complete here: another rank does not know of them.
    numbers = {number for one in found for number, _ in one}
    assert numbers >= {number for number, flags in enumerate(step) if not any(flags)}


def test_live_rows_of_several_micro_batches_share_a_pass_and_a_micro_batch_may_be_cut():
    step = [[True, False, True], [False, False, False], [False, True, True], [True, True, False]]
    # Six rows in two passes of three.
    assert parts_of(packed(step, size=3)) == [
        [(0, [0, 2]), (1, []), (2, [1])],
        [(2, [2]), (3, [0, 1])],
    ]


def test_a_rank_with_fewer_live_rows_spreads_them_over_the_passes_of_the_fullest():
    step = [[True, True, True], [True, False, False], [False, False, False]]
    assert [one.size for one in packed(step, size=3, passes=3)] == [2, 1, 1]
    assert [one.size for one in packed([[False], [True]], size=3, passes=3)] == [1, 0, 0]
    assert parts_of(packed([[False], [False]], size=3, passes=2)) == [[(0, []), (1, [])], []]


def test_an_optimizer_step_without_a_live_row_still_has_a_pass():
    assert parts_of(packed([[False, False]] * 2, size=2)) == [[(0, []), (1, [])]]


def test_rows_of_two_micro_batches_share_no_pass_where_they_are_not_to_mix():
    step = [[True, False], [False, False], [True, True], [False, True], [False, False]]
    assert parts_of(packed(step, size=2, mixes=False)) == [
        [(0, [0]), (1, [])],
        [(2, [0, 1])],
        [(3, [1]), (4, [])],
    ]
    assert parts_of(packed(step[:1], size=2, mixes=False, passes=3)) == [[(0, [0])], [], []]


def test_a_pass_that_is_full_does_not_wait_for_the_next_micro_batch():
    packing = Packing(size=2)
    packing.add(torch.tensor([True, True]))
    assert packing.full == 1
    packing.take(1)
    packing.add(torch.tensor([False, False]))
    # Gradients are summed over ranks in the last pass of a step, here an empty one.
    assert (packing.full, packing.needed) == (0, 1)
    assert parts_of(packing.take(1)) == [[(1, [])]]
    packing.finish()


def test_without_mixing_a_pass_is_kept_for_the_end_of_the_step():
    packing = Packing(size=2, mixes=False)
    packing.add(torch.tensor([True, False]))
    assert packing.full == 0
    packing.add(torch.tensor([True, True]))
    assert packing.full == 1


def test_rows_that_no_pass_has_had_are_noticed():
    packing = Packing(size=2)
    packing.add(torch.tensor([True, True]))
    with pytest.raises(RuntimeError, match="2 live rows in no pass"):
        packing.finish()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="size=0"):
        Packing(size=0)
    with pytest.raises(ValueError, match="3 rows does not fit into passes of 2"):
        Packing(size=2).add(torch.ones(3, dtype=torch.bool))


def test_a_row_is_live_if_an_entry_of_it_is_valid_and_moves_the_loss():
    mask = torch.tensor([[True, False], [False, False], [True, True], [True, True]])
    assert live_rows(None) is None
    assert live_rows(mask).tolist() == [True, False, True, True]
    advantages = torch.tensor([[0.0, 1.0], [2.0, 2.0], [0.0, -1.0], [float("nan"), 0.0]])
    assert live_rows(mask, advantages).tolist() == [False, False, True, True]
    assert live_rows(mask[:, :1], advantages).tolist() == [True, False, True, True]
    assert live_rows(None, advantages[:, 0]).tolist() == [False, True, False, True]


def test_parts_differ_by_one_at_most():
    for total in range(12):
        for parts in range(1, 5):
            found = spread(total, parts)
            assert sum(found) == total
            assert max(found) - min(found) <= 1


def test_a_pass_has_the_samples_of_its_rows_and_a_spare_one_where_it_has_none():
    held = LiveSamples(Packing(size=3))
    numbers = torch.arange(9).reshape(3, 3)
    for own, live in zip(numbers, [[0, 1, 1], [0, 0, 0], [1, 0, 1]], strict=True):
        held.add({"number": own, "inputs": {"twice": 2 * own[:, None]}}, torch.tensor(live).bool())
    found = list(held.take(3))
    assert [one["number"].tolist() for _, one in found] == [[1, 2], [6], [8]]
    assert [one["inputs"]["twice"].flatten().tolist() for _, one in found] == [[2, 4], [12], [16]]
    held.finish()
    held.add({"number": numbers[0]}, torch.zeros(3).bool())
    assert [(one.size, tree["number"].tolist()) for one, tree in held.take(1)] == [(0, [0])]
    held.finish()

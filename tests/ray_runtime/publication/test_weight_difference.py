"""The difference of two versions of weights: exact for all bytes, short where an optimizer makes it so."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.ray_runtime.publication import weight_difference
from rlinf_async.ray_runtime.publication.weight_difference import DamagedDifference, apply, encode

EVERY_WORD = np.arange(2**16, dtype=np.uint16)


def bytes_of(words):
    return np.asarray(words, np.uint16).view(np.uint8)


def made_again(old, new):
    """What `apply` makes of the words `old`; None without a difference. Zeros behind them make it short."""
    old, new = (np.concatenate([each, np.zeros(8 * len(each), np.uint16)]) for each in (old, new))
    target = bytes_of(old).copy()
    difference = encode(bytes_of(old), bytes_of(new))
    if difference is None:
        return None
    apply(target, difference)
    assert not target[len(target) // 9 :].any()
    return target.view(np.uint16)[: len(old) // 9]


@pytest.mark.parametrize("move", [0, 1, 2, 127, 128, 129, 255, 256, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 1])
def test_every_word_moves_by_any_distance(move):
    """With all words there are all numbers of every type: NaN, infinity, zero of either sign, subnormals."""
    new = EVERY_WORD + np.uint16(move)
    assert np.array_equal(made_again(EVERY_WORD, new), new)


@pytest.mark.parametrize("other_share", [0.01, 0.3])
def test_every_distance_is_told_apart(other_share):
    draw = np.random.default_rng(0)
    old = draw.permutation(np.repeat(EVERY_WORD, 4))
    moves = np.where(draw.random(len(old)) < other_share, draw.permutation(np.repeat(EVERY_WORD, 4)), 0)
    new = old + moves.astype(np.uint16)
    assert np.array_equal(made_again(old, new), new)


@given(
    words=st.lists(st.tuples(*2 * [st.lists(st.integers(0, 2**16 - 1), min_size=8, max_size=8)]), max_size=9),
    near=st.lists(st.sampled_from([0, 0, 0, 1, -1, 2, -3, 300]), min_size=72, max_size=72),
    far_share=st.sampled_from([0.0, 0.4, 1.0]),
    slice_words=st.sampled_from([8, 16, 24, 64, 2**19]),
    is_near=st.booleans(),
)
def test_any_words_in_slices_of_any_length(words, near, far_share, slice_words, is_near):
    old, new = (np.array([row[side] for row in words], np.uint16).ravel() for side in range(2))
    if is_near:
        new = old + np.array(near[: len(old)]).astype(np.uint16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_difference, "SLICE_WORDS", slice_words)
        patch.setattr(weight_difference, "MOST_FAR_SHARE", far_share)
        again = made_again(old, new)
        assert again is None or np.array_equal(again, new)


def test_two_bits_for_a_word_and_one_or_two_bytes_more_for_one_that_has_moved_farther():
    draw = np.random.default_rng(0)
    old, count = draw.integers(0, 2**16, 2**19, dtype=np.uint16), 2**19
    # In each eight words one goes up by one and one down, so that no byte of bits is zero.
    moves = np.tile(np.array([1, 0, -1, 0, 0, 0, 0, 0]), count // 8)
    for far, share, bytes_more in ((0, 0, 0), (100, 0.1, 1.125), (1000, 0.1, 2)):
        chosen = (np.arange(count) % 10 == 3) & (draw.random(count) < share * 10)
        new = old + np.where(chosen, far, moves).astype(np.uint16)
        length = len(encode(bytes_of(old), bytes_of(new)))
        assert length == pytest.approx(count / 4 + bytes_more * chosen.sum(), rel=0.03)


def test_where_little_has_changed_little_is_written():
    old = np.zeros(2**20, np.uint16)
    new = old.copy()
    new[::1000] += 1
    # Eight bytes of words are a bit of each of two masks; each change is a byte.
    assert len(encode(bytes_of(old), bytes_of(new))) == pytest.approx(
        2 * len(old) / 64 + len(old) / 1000, rel=0.01
    )
    assert len(encode(bytes_of(old), bytes_of(old))) == pytest.approx(2 * len(old) / 64, rel=0.01)


def after_steps(numbers, *, rate, dtype):
    """The numbers in `dtype` before and after sixteen steps of an optimizer, each of about `rate`."""
    torch.manual_seed(0)
    moved = numbers + rate * torch.randn(16, *numbers.shape).clamp(-1, 1).sum(0)
    return (bytes_of(each.to(dtype).view(torch.int16).numpy().view(np.uint16)) for each in (numbers, moved))


def test_after_optimizer_steps_bfloat16_takes_a_fifth_of_its_bytes_and_float32_has_no_difference():
    torch.manual_seed(1)
    numbers = torch.randn(2**20) * 0.02
    old, new = after_steps(numbers, rate=2e-6, dtype=torch.bfloat16)
    assert len(encode(old, new)) < 0.2 * len(new)
    old, new = after_steps(numbers, rate=2e-6, dtype=torch.float32)
    assert encode(old, new) is None


def test_nothing_has_an_empty_difference_and_only_the_same_number_of_whole_rows_has_any():
    nothing = bytes_of([])
    assert encode(nothing, nothing) == b""
    apply(nothing, b"")
    with pytest.raises(ValueError, match="32 bytes have no difference from 16"):
        encode(np.zeros(16, np.uint8), np.zeros(32, np.uint8))
    for count in (3, 8, 17, 18):
        with pytest.raises(ValueError, match=f"{count} bytes have no difference: give a multiple of 16"):
            encode(np.zeros(count, np.uint8), np.zeros(count, np.uint8))


def differences():
    """Differences of all kinds, of 1000 words each."""
    draw = np.random.default_rng(0)
    old = draw.integers(0, 2**16, 1000, dtype=np.uint16)
    for near_share, far_share in ((0.0, 0.0), (0.01, 0.01), (0.5, 0.2)):
        chances, new = draw.random(1000), old.copy()
        new[chances < near_share] += 1
        new[chances > 1 - far_share] += draw.integers(2, 600, (chances > 1 - far_share).sum()).astype(
            np.uint16
        )
        yield bytes_of(old), encode(bytes_of(old), bytes_of(new))
    yield bytes_of(old), bytes([weight_difference.AS_IT_IS]) + bytes_of(old[::-1].copy()).tobytes()


@pytest.mark.parametrize(("old", "difference"), list(differences()))
def test_what_is_torn_off_or_lengthened_is_refused(old, difference):
    for torn in (*(difference[:end] for end in range(0, len(difference), 7)), difference + b"\0"):
        with pytest.raises(DamagedDifference):
            apply(old.copy(), torn)


@given(data=st.data())
def test_damaged_bytes_are_refused_or_make_other_words_and_touch_nothing_behind_them(data):
    old, difference = data.draw(st.sampled_from(list(differences())))
    damaged = bytearray(difference)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    guarded = np.full(len(old) + 64, 7, np.uint8)
    target = guarded[: len(old)]
    target[:] = old
    with suppress(DamagedDifference):
        apply(target, bytes(damaged))
    assert (guarded[len(old) :] == 7).all()

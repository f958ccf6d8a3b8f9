"""What is said of pairs of runs of RLinf's pi0 class, from curves that are made up."""

import math

from benchmarks.learning import pi0


def curve(success, *, step=1.0):
    return {"success": success, "seconds": [step * (number + 1) for number in range(len(success))]}


def rising(start, first, *, batches=20):
    """`start` until the batch `first`, from which on it is 0.9."""
    return [start] * first + [0.9] * (batches - first)


def test_the_modes_of_a_pair_take_turns_at_being_first_and_the_peer_comes_last():
    planned = [(run.seed, run.mode) for run in pi0.runs()]
    assert planned[:4] == [(10, "full"), (10, "off"), (11, "off"), (11, "full")]
    assert planned[2 * len(pi0.PLANNED_SEEDS) :] == [(seed, pi0.PEER_MODE) for seed in pi0.PEER_SEEDS]


def test_a_seed_is_a_pair_once_both_modes_are_there():
    rows = {pi0.Run(10, "full"): curve([0.5]), pi0.Run(11, "off"): curve([0.5])}
    assert pi0.pairs(rows) == {}
    rows[pi0.Run(10, "off")] = curve([0.5])
    assert list(pi0.pairs(rows)) == [10]


def test_seconds_count_to_the_end_of_four_batches_at_the_level():
    # The mean of 0.5 and three times 0.9 is 0.8: from the seventh batch on it takes until the ninth.
    assert pi0.seconds_to_level(curve(rising(0.5, 6), step=2.0)) == 2.0 * 9
    assert pi0.seconds_to_level(curve([0.7] * 20)) is None


def test_speed_is_the_geometric_mean_of_the_ratios():
    pairs = {
        seed: {"off": curve(rising(0.5, 6)), "full": curve(rising(0.5, 6), step=step)}
        for seed, step in enumerate((0.4, 0.9))
    }
    assert f"over `off`: {math.sqrt(0.4 * 0.9):.2f}, geometric mean" in "".join(pi0.speeds(pairs))
    pairs[7] = {"off": curve([0.5] * 20), "full": curve(rising(0.5, 6))}
    assert "without both: 7" in "".join(pi0.speeds(pairs))
    assert f"over `off`: {math.sqrt(0.4 * 0.9):.2f}, geometric mean" in "".join(pi0.speeds(pairs))


def test_a_batch_that_is_trained_on_again_does_not_count_twice():
    again = curve([0.5, *[0.9] * 19]) | {"fresh": [True, True, *[False] * 14, True, True, True, True]}
    # Fresh are the first two and the last four: 0.5, 0.9, 0.9 and 0.9 end with the eighteenth.
    assert pi0.seconds_to_level(again) == 18.0


def test_two_claims_of_speed_are_corrected_together():
    pairs = {
        seed: {
            "off": curve(rising(0.5, 6), step=2 + seed / 100),
            "full": curve(rising(0.5, 6)),
            pi0.PEER_MODE: curve(rising(0.5, 6), step=0.99 + seed % 2 / 50),
        }
        for seed in range(4)
    }
    of_off, of_peer = pi0.speeds(pairs)
    assert "Holm keeps" in of_off
    assert "over `async-ppo`: 1.00" in of_peer
    assert "Holm does not keep" in of_peer


def test_what_is_learned_is_above_the_start_and_a_share_of_what_off_learned():
    later = {seed: {"off": curve(rising(0.5, 4)), "full": curve(rising(0.5, 5))} for seed in (1, 2)}
    said = pi0.learning(later)
    # Of 20 batches 16 are 0.4 above the start, and 15: a sixteenth less, and nothing but a batch of delay.
    assert f"learned: {-1 / 16:+.1%} [" in said
    assert "not shown to be the same within 5%" in said
    assert "a batch later: +0.0% [" in said
    same = {seed: {"off": curve(rising(0.5, 4)), "full": curve(rising(0.5, 4))} for seed in (1, 2)}
    assert "+0.0%" in pi0.learning(same)


def test_of_few_pairs_nothing_is_claimed():
    pairs = {
        seed: {"off": curve(rising(0.5, 4)), "full": curve(rising(0.5, 5 + seed % 2), step=0.5)}
        for seed in range(5)
    }
    assert pi0.claims({0: pairs[0]}) == []
    assert "nothing is claimed" in pi0.claims({seed: pairs[seed] for seed in range(3)})[0]
    assert "nothing is claimed" not in "".join(pi0.claims(pairs))

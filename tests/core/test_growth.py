"""What is foretold by what a process holds, in numbers."""

import random

import pytest

from rlinf_async.core.growth import HORIZON_S, MAX_SAMPLES, Foreteller, Growth, Held, seconds_left, slope

GROWING = [(5.0 * n, 100.0 + 10.0 * n) for n in range(20)]
"""Ten more every five seconds: two a second, and 290 after the last of them."""


def test_the_slope_of_a_line_is_its_own_and_a_sample_that_is_wrong_does_not_change_it():
    assert slope(GROWING) == 2.0
    assert slope([*GROWING[:5], (25.0, 9e9), *GROWING[6:]]) == 2.0
    with pytest.raises(ValueError, match="needs two samples, and there are 1"):
        slope(GROWING[:1])


def test_steady_growth_reaches_its_limit_when_a_line_does():
    assert seconds_left(GROWING, 490.0) == 100.0
    assert seconds_left(GROWING, 200.0) == 0.0


@pytest.mark.parametrize(
    "samples",
    [
        GROWING[:7],
        [(0.01 * n, 10.0 * n) for n in range(20)],
        [(time, 100.0) for time, _ in GROWING],
        [(time, 100.0 + 50.0 * (n % 2)) for n, (time, _) in enumerate(GROWING)],
        [(time, 300.0 - value) for time, value in GROWING],
        # Caches that fill, and then stand still.
        [(time, min(value, 180.0)) for time, value in GROWING],
        [(time, 100.0 * (1 - 0.7**n)) for n, (time, _) in enumerate(GROWING)],
    ],
    ids=["too few", "too short", "constant", "up and down", "shrinks", "stands still", "slows down"],
)
def test_what_does_not_grow_steadily_foretells_nothing(samples):
    assert seconds_left(samples, samples[-1][1] + 100.0) is None


def test_an_end_beyond_the_horizon_is_not_foretold():
    assert seconds_left(GROWING, 290.0 + 2.0 * HORIZON_S) == HORIZON_S
    assert seconds_left(GROWING, 291.0 + 2.0 * HORIZON_S) is None
    assert seconds_left(GROWING, float("inf")) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_around_a_line_moves_the_end_by_little(seed):
    draw = random.Random(seed)
    noisy = [(5.0 * n, 10.0 * n + draw.uniform(-3, 3)) for n in range(40)]
    left = seconds_left(noisy, noisy[-1][1] + 200.0)
    assert left == pytest.approx(100.0, rel=0.15)


def test_a_growth_has_few_samples_however_long_it_lasts_and_sees_all_of_the_time():
    growth = Growth()
    for n in range(10_000):
        growth.add(float(n), 2.0 * n)
    assert len(growth.samples) <= MAX_SAMPLES
    assert growth.samples[0] == (0.0, 0.0)
    assert growth.samples[-1][0] > 9_700
    assert slope(growth.samples) == 2.0


def test_each_end_is_foretold_once_and_again_at_half_of_the_time():
    foreteller, said = Foreteller(), []
    for n in range(60):
        holdings = {
            "env worker 0": {"memory": Held(value=10.0 * n, limit=1000.0)},
            "env worker 1": {"memory": Held(value=500.0, limit=1000.0)},
        }
        said += [(n, end.process, end.what, end.seconds) for end in foreteller.look(5.0 * n, holdings)]
    # Ten in five seconds: 1,000 is reached at 500 s.
    assert said == [
        (7, "env worker 0", "memory", 465.0),
        (54, "env worker 0", "memory", 230.0),
    ]


def test_who_takes_the_name_of_one_that_has_gone_begins_anew():
    foreteller = Foreteller()
    for n in range(6):
        foreteller.look(5.0 * n, {"env worker 0": {"memory": Held(value=10.0 * n, limit=1000.0)}})
    foreteller.look(30.0, {})
    for n in range(7, 13):
        ends = foreteller.look(5.0 * n, {"env worker 0": {"memory": Held(value=10.0 * n, limit=1000.0)}})
        assert ends == []

"""Learning rates of a framework's own scheduler, which `rate_settings` of its host are compared with."""

from itertools import combinations, product

STEPS = 12


def optims(keys):
    """Sections of an optimizer, one for each choice of values; None stands for a key that is left out."""
    for values in product(*keys.values()):
        yield {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def rates_of(optimizer, schedule):
    """The rates of the first steps."""
    found = []
    for _ in range(STEPS):
        optimizer.step()
        schedule.step()
        found.append(round(schedule.get_last_lr()[0], 9))
    return found


def assert_same_settings_have_same_rates(known):
    """`known`: pairs of the settings of a schedule and its rates."""
    for (one, of_one), (other, of_other) in combinations(known, 2):
        assert one != other or of_one == of_other, (one, of_one, of_other)

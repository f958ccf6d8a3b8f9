import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.first_visits import FirstVisits

WIDTH = 3


def log_probabilities(rows, policy):
    """What `policy` gives to the samples with these numbers: no two are equal."""
    return torch.tensor([[float(row * 100 + policy)] * 2 for row in rows])


@given(data=st.data())
def test_the_anchor_of_a_sample_is_what_the_first_policy_gave_it(data):
    """Pieces arrive, and policies change, between passes; each pass takes any of the samples there are."""
    visits, known, first = FirstVisits(), [], {}
    for policy in range(data.draw(st.integers(1, 8))):
        for steps in data.draw(st.lists(st.integers(1, 3), max_size=2)):
            known += visits.number(steps, WIDTH).flatten().tolist()
        if not known:
            continue
        rows = data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
        for row in rows:
            first.setdefault(row, policy)
        anchors = visits.anchor(torch.tensor(rows), log_probabilities(rows, policy))
        assert torch.equal(anchors, torch.cat([log_probabilities([row], first[row]) for row in rows]))
    assert sorted(known) == list(range(len(known)))


def test_samples_are_numbered_across_pieces():
    visits = FirstVisits()
    assert visits.number(2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert visits.number(1, 2).tolist() == [[6, 7]]


def test_a_batch_knows_nothing_of_the_one_before():
    visits = FirstVisits()
    for policy in range(2):
        visits.begin()
        numbers = visits.number(1, 2).flatten()
        current = log_probabilities([0, 1], policy)
        assert torch.equal(visits.anchor(numbers, current), current)


def test_no_gradient_flows_into_the_anchor():
    visits = FirstVisits()
    current = torch.zeros(2, requires_grad=True)
    assert not visits.anchor(visits.number(1, 2).flatten(), current).requires_grad


def test_an_anchor_has_the_shape_of_what_it_anchors_and_room_for_pieces_that_come_later():
    visits = FirstVisits()
    first = visits.number(2, 2).flatten()
    one = torch.arange(4 * 3 * 2, dtype=torch.float32).view(4, 3, 2)
    assert torch.equal(visits.anchor(first, one), one)
    second = visits.number(1, 3).flatten()
    other = -torch.ones(3, 3, 2)
    assert torch.equal(visits.anchor(second, other), other)
    assert torch.equal(
        visits.anchor(torch.cat([first, second]), torch.zeros(7, 3, 2)), torch.cat([one, other])
    )

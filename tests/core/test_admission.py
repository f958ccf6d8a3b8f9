from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.admission import AdmissionGate


def admit_all(gate, shard=0, limit=100):
    """Batches of the tickets that `shard` is given before the gate holds it back."""
    batches = []
    while (ticket := gate.admit(shard)) is not None and len(batches) < limit:
        batches.append(ticket.batch)
    return batches


@pytest.mark.parametrize("bound", [0, 2])
def test_a_shard_runs_ahead_by_the_bound_and_no_further(bound):
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=bound)
    assert admit_all(gate) == list(range(bound + 1))
    gate.publish(1)
    assert admit_all(gate) == [bound + 1]


def test_a_shard_contributes_every_epoch_to_a_batch_before_it_begins_the_next():
    gate = AdmissionGate(shards=1, epochs=3, max_staleness=1)
    tickets = [gate.admit(0) for _ in range(6)]
    assert [(ticket.batch, ticket.epoch) for ticket in tickets] == list(product(range(2), range(3)))
    assert gate.admit(0) is None


def test_a_fast_shard_cannot_take_the_place_of_a_slow_one():
    gate = AdmissionGate(shards=2, epochs=1, max_staleness=1)
    assert admit_all(gate, shard=0) == [0, 1]
    assert admit_all(gate, shard=1) == [0, 1]


def test_nothing_is_started_beyond_the_last_batch():
    gate = AdmissionGate(shards=1, epochs=2, max_staleness=5, until=2)
    assert admit_all(gate) == [0, 0, 1, 1]
    assert gate.finished(0)


def test_a_shard_that_is_only_held_back_is_not_finished():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=0, until=2)
    admit_all(gate)
    assert not gate.finished(0)


def test_a_refund_is_handed_out_before_anything_newer():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=3)
    first, second = gate.admit(0), gate.admit(0)
    gate.refund(first)
    gate.refund(second)
    assert admit_all(gate) == [0, 1, 2, 3]


def test_a_refunded_ticket_bears_the_version_of_its_second_start():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=1)
    gate.publish(0)
    _, late = gate.admit(0), gate.admit(0)
    gate.publish(1)
    gate.refund(late)
    again = gate.admit(0)
    assert (again.batch, again.epoch, again.version) == (late.batch, late.epoch, 1)


def test_a_refund_after_the_last_start_reopens_a_finished_shard():
    gate = AdmissionGate(shards=2, epochs=1, max_staleness=0, until=1)
    lost = gate.admit(0)
    assert gate.finished(0)
    gate.refund(lost)
    assert not gate.finished(0)
    assert admit_all(gate) == [0]
    assert gate.finished(0)


def test_a_refund_goes_to_its_own_shard():
    gate = AdmissionGate(shards=2, epochs=1, max_staleness=0)
    lost = gate.admit(0)
    assert admit_all(gate, shard=1) == [0]
    gate.refund(lost)
    assert gate.admit(1) is None
    assert gate.admit(0).batch == 0


def test_a_resumed_gate_begins_with_the_batch_of_its_version():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=1, until=9, version=7)
    assert admit_all(gate) == [7, 8]
    assert gate.finished(0)


def test_a_closed_gate_admits_nothing_not_even_a_refund():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=1)
    lost = gate.admit(0)
    gate.refund(lost)
    gate.close()
    assert gate.admit(0) is None
    assert gate.finished(0)


def test_versions_do_not_go_back():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=1, version=3)
    with pytest.raises(ValueError, match="version 2 was published after version 3"):
        gate.publish(2)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_staleness": -1}, "max_staleness=-1"),
        ({"shards": 0}, "shards=0"),
        ({"epochs": 0}, "epochs=0"),
    ],
)
def test_a_gate_names_the_limit_that_its_sizes_break(wrong, named):
    with pytest.raises(ValueError, match=f"{named}.*at least"):
        AdmissionGate(**{"shards": 1, "epochs": 1, "max_staleness": 0, **wrong})


def test_a_gate_of_any_place_gives_the_next_place_to_whoever_comes_first():
    gate = AdmissionGate(shards=2, epochs=2, max_staleness=0, any_place=True)
    tickets = [gate.admit(shard) for shard in (1, 1, 0, 1)]
    assert [(one.shard, one.batch, one.epoch, one.place) for one in tickets] == [
        (1, 0, 0, 0),
        (1, 0, 0, 1),
        (0, 0, 1, 0),
        (1, 0, 1, 1),
    ]
    assert gate.admit(0) is None
    gate.refund(tickets[0])
    again = gate.admit(0)
    assert (again.shard, again.epoch, again.place) == (0, 0, 0)


def test_the_places_of_a_batch_are_handed_out_slowest_first_and_unknown_ones_before_them():
    gate = AdmissionGate(shards=4, epochs=1, max_staleness=9, any_place=True)
    first = [gate.admit(0) for _ in range(4)]
    assert [ticket.place for ticket in first] == [0, 1, 2, 3]
    for place, seconds in ((0, 1.0), (2, 3.0), (3, 2.0)):
        gate.record_duration(first[place], seconds)
    assert [gate.admit(3).place for _ in range(2)] == [1, 2]
    gate.record_duration(first[1], 0.5)  # the order of a batch that has begun is settled
    assert [gate.admit(3).place for _ in range(2)] == [3, 0]
    assert gate.admit(3).place == 2
    gate.record_duration(first[1], 19.5)  # a mean with what it took before: 10 s
    assert [gate.admit(3).place for _ in range(3)] == [3, 0, 1]
    assert gate.admit(3).place == 1


@pytest.mark.parametrize(
    ("took", "order"),
    [
        # Means with what came before: 6 and 7, where the last alone is 10 and 7.
        ({0: [2.0, 10.0], 1: [7.0]}, [1, 0]),
        ({0: [10.0, 2.0], 1: [5.0]}, [0, 1]),
        # A place that has been twice is no faster or slower for that.
        ({0: [6.0, 6.0], 1: [5.5]}, [0, 1]),
        ({0: [6.0, 6.0], 1: [6.5]}, [1, 0]),
    ],
)
def test_what_a_place_took_is_a_mean_of_its_own(took, order):
    gate = AdmissionGate(shards=2, epochs=1, max_staleness=9, any_place=True)
    first = [gate.admit(0) for _ in range(2)]
    for place, seconds in took.items():
        for each in seconds:
            gate.record_duration(first[place], each)
    assert [gate.admit(0).place for _ in range(2)] == order


def test_what_a_place_took_counts_nothing_where_every_shard_has_its_own():
    gate = AdmissionGate(shards=2, epochs=1, max_staleness=9)
    gate.record_duration(gate.admit(0), 1.0)
    gate.record_duration(gate.admit(1), 9.0)
    assert [gate.admit(shard).place for shard in (0, 1, 0, 1)] == [0, 1, 0, 1]


@settings(deadline=None, max_examples=100)
@given(
    any_place=st.booleans(),
    shards=st.integers(1, 3),
    epochs=st.integers(1, 3),
    bound=st.integers(0, 3),
    moves=st.lists(
        st.tuples(st.sampled_from(["admit", "publish", "refund", "took"]), st.integers(0, 2)), max_size=60
    ),
)
def test_whatever_happens_no_place_is_held_twice_and_none_is_too_far_ahead(
    any_place, shards, epochs, bound, moves
):
    gate = AdmissionGate(shards=shards, epochs=epochs, max_staleness=bound, until=5, any_place=any_place)
    held, version = {}, 0
    for move, number in moves:
        if move == "admit":
            ticket = gate.admit(number % shards)
            if ticket is not None:
                place = (ticket.place, ticket.batch, ticket.epoch)
                assert place not in held
                assert ticket.batch <= version + bound
                assert ticket.batch < 5
                held[place] = ticket
        elif move == "publish":
            version += 1
            gate.publish(version)
        elif held:
            place = sorted(held)[number % len(held)]
            if move == "took":
                gate.record_duration(held[place], float(len(held) + number))
            else:
                gate.refund(held.pop(place))
    missing = set(product(range(shards), range(min(5, version + bound + 1)), range(epochs))) - held.keys()
    rest = [gate.admit(place % shards) for place, _, _ in missing]
    assert {(ticket.place, ticket.batch, ticket.epoch) for ticket in rest} == missing
    assert all(any_place or ticket.place == ticket.shard for ticket in (*held.values(), *rest))
    assert [gate.admit(shard) for shard in range(shards)] == [None] * shards


class SortedSlots:
    """What a gate of any place hands out, by the rule alone: all slots are sorted at every ticket."""

    def __init__(self, *, shards, epochs, skipped):
        self.rest = {slot for slot in product(range(9), range(epochs), range(shards)) if slot not in skipped}
        self.seconds, self.refunded, self.begun = {}, [], {}

    def took(self, place, seconds):
        self.seconds[place] = (self.seconds.get(place, seconds) + seconds) / 2

    def next(self):
        if self.refunded:
            return self.refunded.pop(0)
        batch = min(self.rest)[0]
        # The order of a batch is settled by what was known when its first slot was handed out.
        known = self.begun.setdefault(batch, dict(self.seconds))
        of_batch = [slot for slot in self.rest if slot[0] == batch]
        slot = min(of_batch, key=lambda slot: (-known.get(slot[2], float("inf")), slot))
        self.rest.remove(slot)
        return slot


@settings(deadline=None, max_examples=200)
@given(
    shards=st.integers(1, 6),
    epochs=st.integers(1, 3),
    bound=st.integers(0, 2),
    skipped=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5)), max_size=30),
    moves=st.lists(
        st.tuples(
            st.sampled_from(["admit", "admit", "publish", "refund", "took", "took"]), st.integers(0, 20)
        ),
        max_size=120,
    ),
)
def test_places_are_handed_out_as_if_they_were_all_sorted_at_every_ticket(
    shards, epochs, bound, skipped, moves
):
    gate = AdmissionGate(shards=shards, epochs=epochs, max_staleness=bound, until=9, any_place=True)
    gate.skip(skipped)
    plain = SortedSlots(shards=shards, epochs=epochs, skipped=skipped)
    held = []
    for move, number in moves:
        if move == "admit":
            if (ticket := gate.admit(number % shards)) is not None:
                assert (ticket.batch, ticket.epoch, ticket.place) == plain.next()
                held.append(ticket)
        elif move == "publish":
            gate.publish(min(gate.version + 1, 8))
        elif held and move == "took":
            ticket = held[number % len(held)]
            gate.record_duration(ticket, float(number))
            plain.took(ticket.place, float(number))
        elif held:
            ticket = held.pop(number % len(held))
            gate.refund(ticket)
            plain.refunded.append((ticket.batch, ticket.epoch, ticket.place))


class Compared(float):
    """Seconds that count how often any of them are compared."""

    count = 0

    def __add__(self, other):
        return Compared(float(self) + float(other))

    def __truediv__(self, other):
        return Compared(float(self) / other)

    def __neg__(self):
        return Compared(-float(self))

    def __lt__(self, other):
        Compared.count += 1
        return float(self) < float(other)


def comparisons(shards):
    """Comparisons of seconds for the order of one batch, while every shard hands over and asks again."""
    gate = AdmissionGate(shards=shards, epochs=1, max_staleness=0, any_place=True)
    tickets = [gate.admit(shard) for shard in range(shards)]
    Compared.count = 0
    for number, ticket in enumerate(tickets):
        gate.record_duration(ticket, Compared(number * 7919 % shards))
        assert gate.admit(ticket.shard) is None
    gate.publish(1)
    assert None not in [gate.admit(shard) for shard in range(shards)]
    return Compared.count


def test_a_batch_of_twice_the_places_costs_little_more_than_twice_as_much():
    few, many = comparisons(512), comparisons(1024)
    assert few
    assert many < 2.5 * few


@pytest.mark.parametrize("any_place", [False, True])
def test_rollouts_that_are_there_already_are_not_started(any_place):
    gate = AdmissionGate(shards=2, epochs=2, max_staleness=1, version=3, until=5, any_place=any_place)
    done = {(3, 0, 0), (3, 1, 0), (3, 1, 1), (4, 0, 1)}
    gate.skip(done)
    started = {
        (ticket.batch, ticket.epoch, ticket.place)
        for shard in (0, 1)
        for ticket in iter(partial(gate.admit, shard), None)
    }
    assert started == {(b, e, p) for b in (3, 4) for e in (0, 1) for p in (0, 1)} - done
    assert gate.finished(0)
    assert gate.finished(1)


def test_rollouts_that_are_there_already_are_not_started_in_another_order_either():
    gate = AdmissionGate(shards=3, epochs=1, max_staleness=1, any_place=True)
    gate.skip([(0, 0, 2), (1, 0, 2)])
    first, second = gate.admit(0), gate.admit(0)
    assert (first.place, second.place) == (0, 1)
    gate.record_duration(first, 1.0)
    gate.record_duration(second, 2.0)  # of the next batch, place 2 is the one of which nothing is known
    assert [gate.admit(0).place for _ in range(2)] == [1, 0]
    assert gate.admit(0) is None


def test_a_shard_whose_rollouts_are_all_there_waits_for_the_next_version():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=0)
    gate.skip([(0, 0, 0)])
    assert gate.admit(0) is None
    assert not gate.finished(0)
    gate.publish(1)
    assert gate.admit(0).batch == 1


@pytest.mark.parametrize("any_place", [True, False])
def test_a_paused_gate_completes_the_batches_that_have_begun_and_goes_on_with_other_shards(any_place):
    gate = AdmissionGate(shards=4, epochs=2, max_staleness=1, until=5, any_place=any_place)
    tickets = [gate.admit(0), gate.admit(1)]
    assert gate.pause() == gate.pause() == 1
    tickets += [ticket for shard in range(4) for _ in range(8) if (ticket := gate.admit(shard)) is not None]
    assert {(ticket.batch, ticket.epoch, ticket.place) for ticket in tickets} == set(
        product([0], range(2), range(4))
    )
    assert all(gate.finished(shard) for shard in range(4))
    gate.go_on(2)
    gate.publish(1)
    later = [ticket for shard in range(2) for _ in range(9) if (ticket := gate.admit(shard)) is not None]
    assert {(ticket.batch, ticket.epoch, ticket.place) for ticket in later} == set(
        product([1, 2], range(2), range(2))
    )


def test_a_refund_while_the_gate_is_paused_is_collected_again():
    gate = AdmissionGate(shards=1, epochs=1, max_staleness=1)
    ticket = gate.admit(0)
    gate.pause()
    assert gate.finished(0)
    gate.refund(ticket)
    assert not gate.finished(0)
    assert admit_all(gate) == [0]


def test_a_gate_that_is_not_paused_keeps_its_shards():
    with pytest.raises(ValueError, match="not paused"):
        AdmissionGate(shards=1, epochs=1, max_staleness=1).go_on(2)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.publication import PublicationBoard


def test_a_rank_wants_the_newest_version_and_none_that_it_has():
    board = PublicationBoard(ranks=1)
    assert board.wanted(0) is None
    board.offer(0)
    assert board.wanted(0) == 0
    board.applied(0, 0)
    assert board.wanted(0) is None


def test_a_rank_that_has_gone_beyond_does_not_hold_the_others_up():
    board = PublicationBoard(ranks=2)
    board.offer(1)
    board.applied(0, 1)
    board.offer(2)
    board.applied(1, 2)
    assert (board.published, board.wanted(0), board.wanted(1)) == (1, 2, None)


def test_a_version_that_was_superseded_while_it_was_being_applied_still_counts():
    board = PublicationBoard(ranks=1)
    board.offer(1)
    board.offer(2)
    board.applied(0, 1)
    assert (board.published, board.wanted(0)) == (1, 2)


@pytest.mark.parametrize("version", [4, 3])
def test_versions_are_offered_in_increasing_order(version):
    board = PublicationBoard(ranks=1)
    board.offer(4)
    with pytest.raises(ValueError, match=f"version {version} was offered after version 4"):
        board.offer(version)


def test_what_was_never_offered_cannot_be_applied():
    board = PublicationBoard(ranks=1)
    with pytest.raises(ValueError, match="None is the newest"):
        board.applied(0, 0)
    board.offer(1)
    with pytest.raises(ValueError, match="applied version 2, but 1 is the newest"):
        board.applied(0, 2)


def test_a_rank_never_goes_back():
    board = PublicationBoard(ranks=1)
    board.offer(2)
    board.applied(0, 2)
    for version in (2, 1):
        with pytest.raises(ValueError, match=f"rank 0 applied version {version} after version 2"):
            board.applied(0, version)


def test_a_board_without_ranks_is_refused():
    with pytest.raises(ValueError, match="ranks=0 must be at least 1"):
        PublicationBoard(ranks=0)


def test_nobody_waits_for_a_lost_rank_and_what_it_held_back_is_published():
    board = PublicationBoard(ranks=2)
    board.offer(1)
    board.applied(0, 1)
    board.applied(1, 1)
    board.offer(2)
    board.applied(0, 2)
    board.rank_lost(1)
    assert board.published == 2
    assert str(board) == "version 2 is offered, rank 0 has 2, rank 1 is lost"
    board.offer(3)
    board.applied(0, 3)
    assert board.published == 3


def test_the_only_rank_takes_publication_with_it_until_its_successor_has_weights():
    board = PublicationBoard(ranks=1)
    board.offer(4)
    board.applied(0, 4)
    board.rank_lost(0)
    board.offer(5)
    assert board.published == 4
    board.rank_back(0)
    board.applied(0, 5)
    assert board.published == 5


def test_a_rank_that_dies_before_it_has_anything_publishes_nothing():
    board = PublicationBoard(ranks=2)
    board.offer(0)
    board.rank_lost(1)
    assert board.published is None
    board.applied(0, 0)
    assert board.published == 0


class Ranks:
    """Ranks that fetch, apply and die, and what they have; checks the board after every move."""

    def __init__(self, ranks):
        self.board, self.fetched, self.has = PublicationBoard(ranks=ranks), {}, {}
        self.newest, self.before = -1, -1

    def move(self, kind, rank, number):
        getattr(self, kind)(rank, number)
        published = -1 if self.board.published is None else self.board.published
        assert published >= self.before
        assert all(version >= published for version in self.has.values())
        self.before = published

    def offer(self, rank, number):
        self.newest += 1 + number
        self.board.offer(self.newest)

    def fetch(self, rank, number):
        if rank not in self.fetched and (wanted := self.board.wanted(rank)) is not None:
            assert wanted == self.newest > self.has.get(rank, -1)
            self.board.rank_back(rank)
            self.fetched[rank] = wanted

    def apply(self, rank, number):
        if rank in self.fetched:
            self.has[rank] = self.fetched.pop(rank)
            self.board.applied(rank, self.has[rank])

    def lose(self, rank, number):
        self.fetched.pop(rank, None)
        self.has.pop(rank, None)
        self.board.rank_lost(rank)


@given(
    ranks=st.integers(1, 3),
    moves=st.lists(
        st.tuples(st.sampled_from(["offer", "fetch", "apply", "lose"]), st.integers(0, 2)), max_size=60
    ),
)
def test_whatever_the_order_and_whoever_dies_no_rank_acts_by_less_than_what_is_published(ranks, moves):
    world = Ranks(ranks)
    for kind, number in moves:
        world.move(kind, number % ranks, number)
    for kind in ("apply", "fetch", "apply"):
        for rank in range(ranks):
            world.move(kind, rank, 0)
    assert world.before == world.newest

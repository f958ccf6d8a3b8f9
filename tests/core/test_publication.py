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


def test_versions_that_a_rank_was_too_slow_for_are_left_out():
    board = PublicationBoard(ranks=1)
    for version in (3, 4, 7):
        board.offer(version)
    assert board.wanted(0) == 7
    board.applied(0, 7)
    assert board.published == 7


def test_a_version_is_published_once_the_last_rank_has_it():
    board = PublicationBoard(ranks=2)
    board.offer(5)
    board.applied(1, 5)
    assert board.published is None
    board.applied(0, 5)
    assert board.published == 5


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


@given(
    ranks=st.integers(1, 3),
    moves=st.lists(st.tuples(st.sampled_from(["offer", "fetch", "apply"]), st.integers(0, 2)), max_size=60),
)
def test_whatever_the_order_every_rank_ends_with_the_newest_and_publication_never_goes_back(ranks, moves):
    board, fetched, has = PublicationBoard(ranks=ranks), {}, {}
    newest, before = -1, -1

    def apply(rank):
        has[rank] = fetched.pop(rank)
        board.applied(rank, has[rank])

    for move, number in moves:
        rank = number % ranks
        if move == "offer":
            newest += 1 + number
            board.offer(newest)
        elif move == "fetch" and rank not in fetched and (wanted := board.wanted(rank)) is not None:
            assert wanted == newest > has.get(rank, -1)
            fetched[rank] = wanted
        elif move == "apply" and rank in fetched:
            apply(rank)
        published = board.published
        assert published == (min(has.values()) if len(has) == ranks else None)
        assert published is None or published >= before
        before = before if published is None else published

    for rank in range(ranks):
        if rank in fetched:
            apply(rank)
        if (wanted := board.wanted(rank)) is not None:
            board.applied(rank, wanted)
        assert board.wanted(rank) is None
    assert board.published == (None if newest < 0 else newest)

"""Observations that are copied once: a request and a rollout have only their places."""

import pickle

import numpy as np
import pytest
import torch

from rlinf_async.core.row_stack import RowStack, stacked
from rlinf_async.hosts.contract import Contract
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import INLINE_BYTES, MemoryPool, Pickled, Reuse, read
from rlinf_async.wire.payloads import pack, sealed, unpack
from rlinf_async.wire.shown_memory import RolloutMemory, ShownMemory
from tests.open_files import memory_files

ROWS, ENVS = 5, 3


@pytest.fixture
def pool():
    return MemoryPool(Reuse.UNMAPPED)


@pytest.fixture
def contract(pool):
    """Of a shard that has played one rollout, which has told its memory the fields."""
    contract = Contract(0, ENVS)
    contract.rows = RolloutMemory(pool, rows=ROWS)
    rollout(contract, 1)
    return contract


def picture(number, *, size=48):
    return np.full((ENVS, size, size, 3), number, np.uint8)


def rollout(contract, count=ROWS, *, first=0, size=48):
    """The observations of a rollout; their pictures show `first` and the numbers after it."""
    contract.rows.begin()
    seen = []
    for number in range(first, first + count):
        states = torch.full((ENVS, 8), float(number))
        seen.append(contract.observation({"image": picture(number, size=size), "states": states}))
        contract.rows.next()
    return seen


def inode(place, file=0):
    return place[2][file][1]


def test_the_pictures_of_a_rollout_are_one_array_of_memory_that_is_read_and_not_written_again(contract, pool):
    seen = rollout(contract)
    assert isinstance(stacked(seen)["image"], torch.Tensor)
    before = memory_files()
    with pool.holding(pack({"inputs": stacked(seen)})) as place:
        assert memory_files() == before, "the states travel within the message"
        assert len(pickle.dumps(place)) < 2000
        found = unpack(read(place))["inputs"]
        assert torch.equal(found["image"], torch.stack([one["image"] for one in seen]))
        assert torch.equal(found["states"], torch.stack([one["states"] for one in seen]))
        seen[0]["image"][:] = 77
        assert (found["image"][0] == 77).all(), "it is that memory"
        found["image"][1] = 99
        assert (seen[1]["image"] == 1).all(), "a reader writes into pages of its own"


@pytest.mark.real_time
async def test_a_request_has_the_place_of_its_pictures_alone(contract):
    shown, seen = ShownMemory(Listening.ASKED_WITH), rollout(contract)
    before = memory_files()
    with sealed({"obs": seen[2], "final_obs": None}, shown) as (place, _):
        assert memory_files() == before
        found = unpack(read(place))["obs"]
        assert torch.equal(found["image"], torch.from_numpy(picture(2)))
        assert found["states"].tolist() == seen[2]["states"].tolist()
        found["states"][:] = 0  # it can be written to


def test_what_is_too_large_for_a_message_lies_in_a_file_beside_the_pictures(contract, pool):
    seen = rollout(contract)
    rest = torch.arange(INLINE_BYTES)
    with pool.holding(pack([seen[3]["image"], rest, seen[4]["image"]])) as place:
        assert len(place[2]) == 2
        first, found, last = unpack(read(place))
    assert torch.equal(found, rest)
    assert (first.unique().tolist(), last.unique().tolist()) == ([3], [4])


def test_an_array_that_travels_within_the_message_can_be_written_to(contract, pool):
    own = rollout(contract)
    with pool.holding(pack([own[0]["image"], np.arange(9)])) as place:
        _, numbers = unpack(read(place))
    numbers += 1
    assert numbers.tolist() == list(range(1, 10))


def test_a_part_of_the_environments_is_copied_row_by_row(contract, pool):
    whole = stacked(rollout(contract))["image"]
    with pool.holding(pack(whole[:, 1:], adjoin=np.stack)) as place:
        assert torch.equal(unpack(read(place)), whole[:, 1:])


def test_the_memory_of_a_rollout_is_used_again_when_no_tensor_and_no_reader_has_it(contract, pool):
    seen = rollout(contract)
    with pool.holding(pack(seen[0]["image"])) as place:
        mapped, first = read(place), inode(place)
    last = seen[-1]["image"]
    del seen
    for _ in range(3):
        kept = rollout(contract, first=50)
        with pool.holding(pack(kept[0]["image"])) as place:
            assert inode(place) != first, "its last observation is kept, as the next rollout begins with it"
    del last
    kept = rollout(contract, first=50)
    with pool.holding(pack(kept[0]["image"])) as place:
        assert inode(place) != first, "a reader maps it"
    assert mapped.reshape(-1)[0] == 0
    del mapped
    used, kept = set(), []
    for _ in range(3):
        kept.append(rollout(contract, first=50))
        with pool.holding(pack(kept[-1][0]["image"])) as place:
            used.add(inode(place))
    assert first in used
    assert len(used) == 3


def test_memory_that_has_grown_is_found_where_it_is_now(pool):
    small = pool.lend(2**13)
    with pool.holding(small) as place:
        first = inode(place)
    del small
    large = pool.lend(2**22)
    large[-5000:] = 7
    with pool.holding(large[-5000:]) as place:
        assert inode(place) == first
        assert read(place).tolist() == [7] * 5000
    ordinary = np.ones(2**22, np.uint8)
    assert Pickled(ordinary).lent == [None]


def test_other_pictures_than_those_of_the_rollout_before_have_new_memory_and_their_own_in_the_next(contract):
    assert isinstance(stacked(rollout(contract))["image"], torch.Tensor)
    contract.forget()
    apart = stacked(rollout(contract, size=64))["image"]
    assert isinstance(apart, RowStack)
    assert [row.unique().tolist() for row in apart.rows] == [[number] for number in range(ROWS)]
    assert isinstance(stacked(rollout(contract, size=64))["image"], torch.Tensor)


def test_more_observations_than_rows_have_new_memory(contract):
    seen = rollout(contract, ROWS + 1)
    assert [one["image"].unique().tolist() for one in seen] == [[number] for number in range(ROWS + 1)]


def test_a_rollout_that_begins_with_the_end_of_the_one_before_has_it_in_its_own_memory(contract):
    last = rollout(contract)[-1]
    contract.rows.begin()
    seen = [contract.again(last)]
    for number in range(1, ROWS):
        contract.rows.next()
        seen.append(contract.observation({"image": picture(number), "states": torch.zeros(ENVS, 8)}))
    assert isinstance(stacked(seen)["image"], torch.Tensor)
    assert (seen[0]["image"] == ROWS - 1).all()
    assert (last["image"] == ROWS - 1).all()


def test_a_final_observation_takes_no_row(contract):
    contract.rows.begin()
    first = contract.observation({"image": picture(1), "states": torch.zeros(ENVS, 8)})
    final = contract.observation({"image": picture(2), "states": torch.zeros(ENVS, 8)}, "final")
    assert (first["image"] == 1).all()
    assert (final["image"] == 2).all()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(2**14, dtype=">u2").reshape(ENVS - 2, -1),
        np.arange(2**14, dtype=np.int64).reshape(1, -1)[:, ::-1],
        np.arange(2**14, dtype=np.float32).reshape(1, 2**7, -1).transpose(0, 2, 1),
        torch.arange(2**14, dtype=torch.bfloat16).reshape(1, 2**7, -1).transpose(1, 2),
        torch.arange(2**14, dtype=torch.float64, requires_grad=True).reshape(1, -1),
    ],
)
def test_any_array_is_copied_into_a_row_as_it_is_into_new_memory(pool, array):
    contract = Contract(0, 1)
    expected = contract.observation({"points": array})["points"]
    contract.rows = RolloutMemory(pool, rows=1)
    for _ in range(2):
        contract.rows.begin()
        found = contract.observation({"points": array})["points"]
        assert found.dtype == expected.dtype
        assert found.is_contiguous()
        assert not found.requires_grad
        assert torch.equal(found, expected)

import pytest
import torch

from rlinf_async.core import row_stack
from rlinf_async.core.row_stack import RowStack, stacked
from rlinf_async.core.tensors import concatenate, map_tensors, slice_samples

LARGE = row_stack.SMALLEST_ROW_BYTES


def rows(*, count=5, width=3, size=LARGE):
    draw = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (count, width, size), generator=draw, dtype=torch.uint8)
    return [{"picture": one.clone(), "in": {"state": one[:, :2].float()}, "none": None} for one in picture]


def test_it_is_cut_as_the_tensor_that_it_stands_for():
    given = rows()
    expected = torch.stack([row["picture"] for row in given])
    found = stacked(given)["picture"]
    assert isinstance(found, RowStack)
    cut = slice_samples({"picture": found}, 1, 3, dim=1)["picture"][:4]
    assert torch.equal(torch.stack(cut.rows), expected[:4, 1:3])
    assert len(cut) == 4


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 3, 3), (3, 2, 1, 0)])
def test_rows_that_lie_one_behind_the_other_are_a_tensor(order):
    given = torch.arange(6 * LARGE).reshape(6, 1, LARGE)[1:-1]
    found = stacked([{"points": given[number]} for number in order])["points"]
    if order == (0, 1, 2, 3):
        assert found.data_ptr() == given.data_ptr()
        assert torch.equal(found, given)
    else:
        assert torch.equal(torch.stack(found.rows), given[list(order)])


def test_nothing_of_it_is_copied():
    given = rows()
    places = [row["picture"].data_ptr() for row in given]
    assert [row.data_ptr() for row in stacked(given)["picture"].rows] == places


def test_small_fields_are_stacked_at_once_and_so_are_those_of_unlike_rows():
    given = rows(width=1, size=100)
    expected = concatenate([map_tensors(lambda tensor: tensor[None], row) for row in given])
    found = stacked(given)
    assert torch.equal(found["picture"], expected["picture"])
    assert torch.equal(found["in"]["state"], expected["in"]["state"])
    assert found["none"] is None
    mixed = rows()
    mixed[2]["picture"] = mixed[2]["picture"].float()
    assert stacked(mixed)["picture"].dtype == torch.float32


def test_a_field_that_some_rows_lack_is_named():
    given = rows()
    del given[3]["picture"]
    with pytest.raises(ValueError, match="'picture' must be a tensor in all of 5 trees"):
        stacked(given)
